//go:build unix

package process

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// Reaper is a small process that outlives ours. When ours has ended, for any reason, it
// ends the server and removes its directory. Its input has the server's process ID, each
// time that changes; the end of the input means that our process has ended.
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

// StartReaper starts a reaper that will remove dir. It runs as the account, which owns dir
// and could plant links in it.
func StartReaper(dir string, account *Account) (*Reaper, error) {
	cmd := exec.Command("/bin/sh", "-c", reaperScript, "pglimit-reaper", dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	account.Apply(cmd)
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Reaper{cmd, input}, nil
}

// Watch sends the server's process ID to the reaper; 0 if no server runs.
func (r *Reaper) Watch(pid int) {
	if r != nil {
		fmt.Fprintln(r.input, pid) // the server also runs without a reaper
	}
}

// Close ends the reaper. The server must be stopped before.
func (r *Reaper) Close() {
	if r == nil {
		return
	}
	r.Watch(0)
	r.input.Close()
	_ = r.cmd.Wait()
}
