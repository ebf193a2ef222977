//go:build unix

package process

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Trusted returns path without symbolic links. For root it returns an error if another
// account may change a directory on the path, the last one included, or one on the way to it
// through links: it could put a link there, and root would write where that leads. A link of
// another account is an error too. Components that do not exist yet are trusted, because root
// creates them.
func Trusted(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if os.Geteuid() != 0 {
		return path, nil
	}
	at, left := "/", strings.Split(path, "/")
	for links := 0; ; {
		if why, err := changeable(at, 0); err != nil {
			return "", err
		} else if why != "" {
			return "", fmt.Errorf("%s %s, who could redirect what root writes below it: run as that user, or name a directory that only root can change", at, why)
		}
		if len(left) == 0 {
			return at, nil
		}
		next := filepath.Join(at, left[0])
		info, err := os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return filepath.Join(next, filepath.Join(left[1:]...)), nil
		case err != nil:
			return "", err
		case info.Mode()&fs.ModeSymlink == 0:
			at, left = next, left[1:]
			continue
		}
		if uid, name := owner(info); uid != 0 {
			return "", fmt.Errorf("%s is a symbolic link that belongs to user %s, who could redirect what root writes: name the directory itself", next, name)
		}
		if _, err := os.Stat(next); errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%s is a symbolic link to nothing: remove it", next)
		}
		target, err := os.Readlink(next)
		if links++; err != nil || links > 40 {
			return "", cmp.Or(err, fmt.Errorf("%s: too many symbolic links", path))
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		left = append(strings.Split(target, "/"), left[1:]...)
	}
}

// owner returns the account that a file belongs to; root if this system does not say.
func owner(info fs.FileInfo) (uid int, name string) {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		uid = int(stat.Uid)
	}
	name = strconv.Itoa(uid)
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	return uid, name
}

// changeable returns why accounts other than root and uid may replace entries of dir, or
// "" if they may not. In a sticky directory they may replace only their own.
func changeable(dir string, uid int) (why string, _ error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	if owned, name := owner(info); owned != 0 && owned != uid {
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
