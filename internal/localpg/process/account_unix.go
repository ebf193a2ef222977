//go:build unix

package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// Account is another user than ours. A nil Account is our user.
type Account struct {
	uid, gid int
	name     string
}

// RunAs returns the account that runs the server: nil, which is our user, unless that is
// root. For root it is the owner of an existing data directory, or else user postgres or
// nobody.
func RunAs(dataDir string, isNew bool) (*Account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if !isNew {
		info, err := os.Stat(dataDir)
		if err != nil {
			return nil, err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || stat.Uid == 0 {
			return nil, fmt.Errorf("data directory %s belongs to root, and PostgreSQL refuses to run as root: chown it", dataDir)
		}
		return &Account{int(stat.Uid), int(stat.Gid), fmt.Sprint("number ", stat.Uid)}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil && uid != 0 {
			return &Account{uid, gid, name}, nil
		}
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody: add one (useradd --system postgres), or run as another user")
}

// Apply makes cmd run as the account.
func (a *Account) Apply(cmd *exec.Cmd) {
	if a == nil {
		return
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// Own makes the account the owner of an open file or directory. It takes no path, because
// another account could put a link there.
func (a *Account) Own(f *os.File) error {
	if a == nil {
		return nil
	}
	return f.Chown(a.uid, a.gid)
}

// Owns reports whether a file belongs to the account.
func (a *Account) Owns(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	if a == nil {
		return int(stat.Uid) == os.Geteuid()
	}
	return int(stat.Uid) == a.uid
}

// Reach returns an error if the account cannot reach path. It names the parent directory
// that prevents it.
func (a *Account) Reach(path string) error {
	if a == nil {
		return nil
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err == nil && info.Mode().Perm()&0o001 == 0 {
			if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != a.uid {
				return fmt.Errorf("PostgreSQL refuses to run as root, and user %s, who runs it instead, cannot reach %s: %s is closed to others (mode %04o): choose a directory outside it, or chmod o+x it",
					a.name, path, dir, info.Mode().Perm())
			}
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}
