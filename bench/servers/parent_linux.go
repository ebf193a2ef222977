package servers

import (
	"os/exec"
	"syscall"
)

// endWithParent keeps the terminal's Ctrl-C from the server, which this
// program ends, and has the system kill it when this program is killed.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
