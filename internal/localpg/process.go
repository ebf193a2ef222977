package localpg

import (
	"os/exec"
	"runtime"
)

// process is a started server process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// startProcess starts cmd as the account, such that it ends when this process
// does, as far as the system has means for that.
func startProcess(cmd *exec.Cmd, as *account) (*process, error) {
	as.apply(cmd)
	detach(cmd)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The system ties the parent's death signal to the thread that
		// started the child, so that thread stays until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended stands in its log
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// ended tells whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}
