//go:build unix

package embedded

import (
	"os"
	"os/exec"
	"syscall"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/embedded/datadir"
)

// ownSession keeps the terminal's Ctrl-C and its end from the keeper.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// stopKeeper asks the keeper of dir to end at once; false if it cannot be asked.
func stopKeeper(dir datadir.Dir) bool {
	s, err := dir.ReadState()
	if err != nil {
		return false
	}
	// The process found is the keeper, and no later one of its number, if the
	// keeper still lives after it was found.
	keeper, err := os.FindProcess(s.Keeper)
	if err != nil {
		return false
	}
	lock := dir.Keeper()
	if free, err := lock.TryRLock(); free || err != nil {
		_ = lock.Unlock()
		return err == nil
	}
	return terminate(keeper)
}

// terminate asks a keeper to end.
func terminate(keeper *os.Process) bool { return keeper.Signal(syscall.SIGTERM) == nil }
