//go:build unix

package embedded

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

// touchAll writes every file of a directory.
func touchAll(d Dir) error {
	log, err := d.OpenLog()
	if err == nil {
		err = log.Close()
	}
	for _, lock := range []interface {
		TryLock() (bool, error)
		Unlock() error
	}{d.Users(), d.Keeper()} {
		if _, e := lock.TryLock(); e != nil {
			err = errors.Join(err, e)
		} else {
			err = errors.Join(err, lock.Unlock())
		}
	}
	return errors.Join(err, d.WriteState(State{Keeper: 1, URL: "postgres://secret"}))
}

func TestDirIsClosedToOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "parent", "data")
	before := syscall.Umask(0) // the modes must not depend on it
	defer syscall.Umask(before)
	d := must.OK(prepare(path))(t)
	must.Succeed(t, touchAll(d))
	want := fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		want = 0o711 // the server's user passes through, and cannot list it
	}
	for _, dir := range []string{path, filepath.Dir(path)} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %v", dir, info.Mode(), err, want)
		}
	}
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) != 4 {
		t.Errorf("%v, %v; want 4 files", entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", e.Name(), info.Mode(), err)
		}
	}
}

// TestDirFollowsNoLinks plants a link at each name that is written.
func TestDirFollowsNoLinks(t *testing.T) {
	t.Parallel()
	for _, name := range []string{usersLock, keeperLock, "keeper.log", stateFile} {
		for _, target := range []string{"there", "missing"} {
			parent := t.TempDir()
			there := filepath.Join(parent, "there")
			must.Succeed(t, os.WriteFile(there, []byte("untouched"), 0o640))
			d := must.OK(prepare(filepath.Join(parent, "data")))(t)
			must.Succeed(t, os.Symlink(filepath.Join(parent, target), filepath.Join(string(d), name)))
			_ = touchAll(d) // refused, or it replaces the link
			text, err := os.ReadFile(there)
			info, statErr := os.Stat(there)
			if err != nil || statErr != nil || string(text) != "untouched" || info.Mode() != 0o640 {
				t.Errorf("%s: its target is now %q, %v, %v", name, text, info.Mode(), errors.Join(err, statErr))
			}
			if _, err := os.Lstat(filepath.Join(parent, "missing")); err == nil {
				t.Errorf("%s: a file was created through the link", name)
			}
		}
	}
}

// TestPrepareBelowAnotherUser: root uses no directory that others can replace.
func TestPrepareBelowAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		return // any directory that another user can write is theirs to choose
	}
	for name, change := range map[string]func(dir string) error{
		"belongs to user 12345": func(dir string) error { return os.Chown(dir, 12345, 12345) },
		"mode 0777":             func(dir string) error { return os.Chmod(dir, 0o777) },
	} {
		parent := filepath.Join(t.TempDir(), "parent")
		must.Succeed(t, errors.Join(os.Mkdir(parent, 0o755), change(parent)))
		if _, err := prepare(filepath.Join(parent, "data")); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
			t.Errorf("%s: created %v, %v", name, left, err)
		}
		link := filepath.Join(filepath.Dir(parent), "link")
		must.Succeed(t, os.Symlink(parent, link))
		if _, err := prepare(filepath.Join(link, "data")); !errors.Is(err, ErrUnusable) {
			t.Errorf("through a link, %s: %v", name, err)
		}
	}
}
