package servers

import (
	"os/exec"
	"syscall"
)

// endWithParent keeps the terminal's Ctrl-C from the server, which this program stops, and
// has the system kill the server if this program is killed.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
