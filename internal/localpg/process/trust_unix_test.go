//go:build unix

package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

// TestTrusted: root writes below no directory that another account may change. Other users
// write where they want.
func TestTrusted(t *testing.T) {
	t.Parallel()
	root := os.Geteuid() == 0
	for name, c := range map[string]struct {
		mode fs.FileMode
		uid  int
		want string // of root's error
	}{
		"ours":         {0o755, -1, ""},
		"sticky":       {0o777 | fs.ModeSticky, -1, ""},
		"open":         {0o777, -1, "mode 0777"},
		"of our group": {0o775, -1, "mode 0775"},
		"theirs":       {0o755, 12345, "belongs to user 12345"},
	} {
		parent := t.TempDir()
		dir, link := filepath.Join(parent, "dir"), filepath.Join(parent, "link")
		must.Succeed(t, errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, c.mode), os.Symlink(dir, link)))
		if root && c.uid > 0 {
			must.Succeed(t, os.Chown(dir, c.uid, c.uid))
		}
		for _, path := range []string{dir, filepath.Join(dir, "a", "b"), filepath.Join(link, "a")} {
			got, err := Trusted(path)
			if !root || c.want == "" {
				if err != nil || root && !strings.HasPrefix(got, dir) {
					t.Errorf("%s: %s: %s, %v", name, path, got, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%s: %s: %v, want %q and the directory", name, path, err, c.want)
			}
		}
		if _, err := Trusted(filepath.Join(parent, "dir", "..", "link")); root && (err == nil) != (c.want == "") {
			t.Errorf("%s: a way through .. and a link: %v", name, err)
		}
		if err := os.Lchown(link, 12345, 12345); root && err != nil {
			t.Fatal(err)
		}
		if _, err := Trusted(filepath.Join(link, "a")); root && (err == nil || !strings.Contains(err.Error(), "link that belongs to user 12345")) {
			t.Errorf("%s: a link of another user: %v", name, err)
		}
		inside := filepath.Join(dir, "inside") // a link of root in a directory of others
		must.Succeed(t, os.Symlink("/", inside))
		if _, err := Trusted(filepath.Join(inside, "etc")); root && (err == nil) != (c.want == "") {
			t.Errorf("%s: a link in the directory: %v", name, err)
		}
		must.Succeed(t, os.Symlink(filepath.Join(parent, "nowhere"), filepath.Join(parent, "broken")))
		if _, err := Trusted(filepath.Join(parent, "broken", "a")); root && err == nil {
			t.Errorf("%s: a link to nothing was followed", name)
		}
	}
}

// TestReaperIsTheAccounts: the reaper removes files of the account with its rights.
func TestReaperIsTheAccounts(t *testing.T) {
	t.Parallel()
	account := must.OK(RunAs("", true))(t)
	want := os.Geteuid()
	if account != nil {
		want = account.uid
	}
	r := must.OK(StartReaper(t.TempDir(), account))(t)
	defer r.Close()
	out, err := exec.Command("ps", "-o", "uid=", "-p", fmt.Sprint(r.cmd.Process.Pid)).Output()
	if err != nil || string(bytes.TrimSpace(out)) != fmt.Sprint(want) {
		t.Errorf("the reaper runs as user %s, %v; want %d", out, err, want)
	}
}
