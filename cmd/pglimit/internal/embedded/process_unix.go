//go:build unix

package embedded

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// lockFlags open a file of the directory, and no link that somebody put there.
const lockFlags = os.O_CREATE | os.O_RDWR | syscall.O_NOFOLLOW

// ownSession keeps the terminal's Ctrl-C and its end from the keeper.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// ours returns an error unless dir belongs to our user: another's could put
// links into it where we write.
func ours(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) == os.Geteuid() {
		return nil
	}
	owner := strconv.Itoa(int(stat.Uid))
	if u, err := user.LookupId(owner); err == nil {
		owner = u.Username
	}
	return unusable(dir, fmt.Sprintf("it belongs to user %s: run as that user, or name another directory", owner))
}

// stopKeeper asks dir's keeper to end at once; false if it cannot be asked.
func stopKeeper(dir string) bool {
	s, err := readState(dir)
	if err != nil {
		return false
	}
	// The process found is the keeper, and no later one of its number, if the
	// keeper still lives after it was found.
	keeper, err := os.FindProcess(s.Keeper)
	if err != nil {
		return false
	}
	lock := keeperLock(dir)
	if free, err := lock.TryRLock(); free || err != nil {
		_ = lock.Unlock()
		return err == nil
	}
	return terminate(keeper)
}

// terminate asks a keeper to end.
func terminate(keeper *os.Process) bool { return keeper.Signal(syscall.SIGTERM) == nil }
