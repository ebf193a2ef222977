//go:build unix

package embedded

import (
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// ownSession protects the keeper from the terminal's Ctrl-C and hangup.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// stopKeeper sends the keeper of dir a signal to end at once. It returns false if
// that failed.
func stopKeeper(dir Dir) bool {
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

// openFlags open or create a file of the directory, but follow no symbolic link.
const openFlags = os.O_CREATE | os.O_RDWR | syscall.O_NOFOLLOW

// foreignOwner returns the name of dir's owner, or "" if that is our user. Another
// owner could redirect our writes by links.
func foreignOwner(dir string) (string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) == os.Geteuid() {
		return "", nil
	}
	owner := strconv.Itoa(int(stat.Uid))
	if u, err := user.LookupId(owner); err == nil {
		owner = u.Username
	}
	return owner, nil
}
