//go:build unix

package localpg

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// reaper is a small process that outlives ours: when ours has ended, for
// whatever reason, it ends the server and removes its directory. It learns of
// our end by the end of its input, which carries the server's process number
// each time that changes.
type reaper struct {
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

// startReaper starts a reaper that will remove dir.
func startReaper(dir string) (*reaper, error) {
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
	return &reaper{cmd, input}, nil
}

// watch says which process is the server's; 0 for none.
func (r *reaper) watch(pid int) {
	if r != nil {
		fmt.Fprintln(r.input, pid) // without a reaper the server runs as well
	}
}

// close dismisses the reaper. The server has to be stopped by now.
func (r *reaper) close() {
	if r == nil {
		return
	}
	r.watch(0)
	r.input.Close()
	_ = r.cmd.Wait()
}
