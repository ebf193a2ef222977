//go:build unix

package datadir

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// openFlags open a file of the directory, and no link that somebody put there.
const openFlags = os.O_CREATE | os.O_RDWR | syscall.O_NOFOLLOW

// foreignOwner names the owner of dir, unless that is our user: another's could
// put links into it where we write.
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
