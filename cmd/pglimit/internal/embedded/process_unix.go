//go:build unix

package embedded

import (
	"os"
	"os/exec"
	"syscall"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/embedded/datadir"
)

// ownSession protects the keeper from the terminal's Ctrl-C and hangup.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// stopKeeper sends the keeper of dir a signal to end at once. It returns false if
// that failed.
func stopKeeper(dir datadir.Dir) bool {
	s, err := dir.ReadState()
	if err != nil {
		return false
	}
	// If the keeper still runs after the process was found, the process is the
	// keeper and not a later one with the same ID.
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

// terminate sends a keeper the signal to end.
func terminate(keeper *os.Process) bool { return keeper.Signal(syscall.SIGTERM) == nil }
