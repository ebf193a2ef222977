// Package process starts and ends the processes of a PostgreSQL server. They run as
// another user than root, and end when the process that started them ends.
package process

import (
	"os/exec"
	"runtime"
)

// Process is a started server process.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// Start starts cmd, such that it ends when this process does, as far as the
// system has means for that.
func Start(cmd *exec.Cmd) (*Process, error) {
	detach(cmd)
	p := &Process{cmd: cmd, done: make(chan struct{})}
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

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}
