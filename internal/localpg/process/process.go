// Package process starts and ends the processes of a PostgreSQL server. They never run as
// root, and end when the process that started them ends.
package process

import (
	"os/exec"
	"runtime"
)

// Process is a started server process.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Start starts cmd. If the system supports it, cmd ends when this process ends.
func Start(cmd *exec.Cmd) (*Process, error) {
	detach(cmd)
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the parent's death signal when the thread that started the
		// child ends, so keep that thread until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the result is in its log
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// Done returns a channel that is closed when the process has ended.
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
