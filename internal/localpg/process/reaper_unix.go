//go:build unix

package process

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// Reaper is a small process that outlives ours: when ours has ended, for
// whatever reason, it ends the server and removes its directory. It learns of
// our end by the end of its input, which carries the server's process number
// each time that changes.
type Reaper struct {
	cmd   *exec.Cmd
	input io.WriteCloser
}

const reaperScript = `
trap '' HUP INT TERM
pid=0
while read -r line; do pid=$line; done
if [ "$pid" != 0 ] && kill -QUIT "$pid"; then
	tries=50
	while [ $tries -gt 0 ] && kill -0 "$pid"; do sleep 0.1; tries=$((tries - 1)); done
fi
rm -rf -- "$1"
`

// StartReaper starts a reaper that will remove dir.
func StartReaper(dir string) (*Reaper, error) {
	cmd := exec.Command("/bin/sh", "-c", reaperScript, "pglimit-reaper", dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Reaper{cmd, input}, nil
}

// Watch says which process is the server's; 0 for none.
func (r *Reaper) Watch(pid int) {
	if r != nil {
		fmt.Fprintln(r.input, pid) // without a reaper the server runs as well
	}
}

// Close dismisses the reaper. The server has to be stopped by now.
func (r *Reaper) Close() {
	if r == nil {
		return
	}
	r.Watch(0)
	r.input.Close()
	_ = r.cmd.Wait()
}
