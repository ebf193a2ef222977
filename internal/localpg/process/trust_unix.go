//go:build unix

package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// Trusted returns path without symbolic links. For root it returns an error if another
// account may change a directory on the path, the last one included: it could put a link
// there, and root would write where that leads. Components that do not exist yet are
// trusted, because root creates them.
func Trusted(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if os.Geteuid() != 0 {
		return path, nil
	}
	existing, missing := path, ""
	for {
		resolved, err := filepath.EvalSymlinks(existing)
		if err == nil {
			existing = resolved
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if _, err := os.Lstat(existing); err == nil {
			return "", fmt.Errorf("%s is a symbolic link to nothing: remove it", existing)
		}
		missing = filepath.Join(filepath.Base(existing), missing)
		existing = filepath.Dir(existing)
	}
	for dir := existing; ; dir = filepath.Dir(dir) {
		if why, err := changeable(dir, 0); err != nil {
			return "", err
		} else if why != "" {
			return "", fmt.Errorf("%s %s, who could redirect what root writes below it: run as that user, or name a directory that only root can change", dir, why)
		}
		if dir == filepath.Dir(dir) {
			return filepath.Join(existing, missing), nil
		}
	}
}

// changeable returns why accounts other than root and uid may replace entries of dir, or
// "" if they may not. In a sticky directory they may replace only their own.
func changeable(dir string, uid int) (why string, _ error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", nil
	}
	if owner := int(stat.Uid); owner != 0 && owner != uid {
		name := strconv.Itoa(owner)
		if u, err := user.LookupId(name); err == nil {
			name = u.Username
		}
		return "belongs to user " + name, nil
	}
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return fmt.Sprintf("may be changed (mode %04o) by other users", info.Mode().Perm()), nil
	}
	return "", nil
}

// TempDir returns the directory for a server's temporary files: the system's, or /tmp if
// fits rejects that, the account cannot write there, or other accounts could replace its
// entries.
func (a *Account) TempDir(fits func(dir string) bool) (string, error) {
	dir, err := filepath.Abs(os.TempDir())
	if err == nil && fits(dir) && a.mayUse(dir) {
		return dir, nil
	}
	const last = "/tmp"
	if !fits(last) || !a.mayUse(last) {
		return "", fmt.Errorf("no directory for the server's socket: neither %s nor %s can be used without others changing it: set TMPDIR to a directory that only you can change, with a path of at most 60 bytes", dir, last)
	}
	return last, nil
}

// mayUse reports whether the account can create directories in dir, and no other account
// can replace them.
func (a *Account) mayUse(dir string) bool {
	uid := os.Geteuid()
	if a != nil {
		uid = a.uid
	}
	for d := dir; ; d = filepath.Dir(d) {
		if why, err := changeable(d, uid); err != nil || why != "" && !unmapped(d) {
			return false
		}
		info, err := os.Stat(d)
		if err != nil {
			return false
		}
		need := fs.FileMode(0o001) // to pass
		if d == dir {
			need = 0o003 // to create and remove
		}
		if a != nil && !a.Owns(info) && info.Mode().Perm()&need != need {
			return false
		}
		if d == filepath.Dir(d) {
			return true
		}
	}
}

// unmapped reports whether dir belongs to a user outside this user namespace, such as the
// machine's root in a container without privileges.
func unmapped(dir string) bool {
	const overflow = 65534
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid == overflow && os.Geteuid() != 0 && os.Geteuid() != overflow && info.Mode().Perm()&0o022 == 0
}
