//go:build unix

package datadir

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
)

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
