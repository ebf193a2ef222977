//go:build unix

package localpg

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/localpg/process"
	"github.com/pglimit/pglimit/internal/must"
)

// TestServerIsClosedToOthers looks at everything that a server makes, and at where it
// listens: only on its socket, without a password.
func TestServerIsClosedToOthers(t *testing.T) {
	t.Parallel()
	s := start(t, Options{DataDir: filepath.Join(reachable(t), "data")})
	for _, dir := range []string{s.runDir, s.dataDir} {
		seen := 0
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // the server removes files while it works
			}
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return nil
			}
			seen++
			if info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %v, open to others", path, info.Mode())
			}
			return nil
		})
		if err != nil || seen < 3 {
			t.Errorf("%s: %d files, %v", dir, seen, err)
		}
	}
	if got := query(t, s.URL(), "show listen_addresses"); got != "" {
		t.Errorf("listen_addresses is %q, want none", got)
	}
	config, err := pgx.ParseConfig(s.URL())
	if err != nil || config.Host != s.runDir || config.Password != "" {
		t.Errorf("%s: %v, want host %s and no password", s.URL(), err, s.runDir)
	}
}

// TestSocketDirectory: a TMPDIR whose path is too long for a socket or a list, or which
// others may change, is not used.
func TestSocketDirectory(t *testing.T) {
	parent := reachable(t)
	open := filepath.Join(parent, "open")
	for name, dir := range map[string]string{
		"long":          filepath.Join(parent, strings.Repeat("d", 100)),
		"with a comma":  filepath.Join(parent, "a,b"),
		"open":          open,
		"below an open": filepath.Join(open, "below"),
		"usable":        filepath.Join(parent, "ok"),
	} {
		must.Succeed(t, os.MkdirAll(dir, 0o700))
		mode := fs.FileMode(0o777 | fs.ModeSticky)
		if name == "open" {
			mode = 0o777
		}
		if err := errors.Join(os.Chmod(open, 0o777), os.Chmod(dir, mode)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", dir)
		want := "/tmp"
		if name == "usable" {
			want = dir
		}
		account := must.OK(process.RunAs("", true))(t)
		if got, err := account.TempDir(new(Server).socketFits); got != want || err != nil {
			t.Errorf("%s: the socket would be in %s, %v, want %s", name, got, err, want)
		}
	}
	usable := filepath.Join(parent, "ok")
	t.Setenv("TMPDIR", usable)
	s := start(t, Options{})
	if got := filepath.Dir(s.runDir); got != usable {
		t.Errorf("the socket is in %s, want %s", got, usable)
	}
	query(t, s.URL(), "select 'up'")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(usable); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// victim creates a file of this user, which no link may lead to. The result checks that it
// is untouched.
func victim(t *testing.T, path string) (check func()) {
	t.Helper()
	const content = "untouched\n"
	must.Succeed(t, os.WriteFile(path, []byte(content), 0o600))
	before := must.OK(os.Stat(path))(t)
	return func() {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil || string(text) != content {
			t.Errorf("%s is now %q, %v", path, text, err)
		}
		after, err := os.Stat(path)
		if err != nil || after.Mode() != before.Mode() || after.Sys().(*syscall.Stat_t).Uid != before.Sys().(*syscall.Stat_t).Uid {
			t.Errorf("the owner or mode of %s was changed: %v, %v", path, after, err)
		}
	}
}

// plantingServer returns a directory with an initdb that runs a script with $data and $run,
// as the account that runs the server. That account may change them at any time.
func plantingServer(t *testing.T, script string) string {
	t.Helper()
	dir := fakeServer(t, "15.1")
	const arguments = "#!/bin/sh\nwhile [ $# -gt 0 ]; do case $1 in -D) data=$2;; --pwfile) run=${2%/*};; esac; shift; done\nmkdir -p \"$data\"\n"
	writeProgram(t, filepath.Join(dir, "initdb"), arguments+script)
	return dir
}

// TestPlantedLinks plants a link to a file of ours at each name that is written or removed
// in the directories of the server's account. As root that account is another one.
func TestPlantedLinks(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"password for initdb":       `ln -sf "$target" "$run/password"`,
		"password in the data":      `ln -sf "$target" "$data/pglimit.password"`,
		"log":                       `ln -sf "$target" "$run/postgres.log"`,
		"socket":                    `ln -sf "$target" "$run/.s.PGSQL.5432"`,
		"pid file":                  `ln -sf "$target" "$data/postmaster.pid"`,
		"the data directory":        `rmdir "$data" && ln -s "${target%/*}" "$data"`,
		"the run directory":         `mv "$run" "$run.away" && ln -s "${target%/*}" "$run"`,
		"a broken link for data":    `ln -sf "${target%/*}/created" "$data/pglimit.password"`,
		"a broken link for the log": `ln -sf "${target%/*}/created" "$run/postgres.log"`,
	} {
		for _, temporary := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				house := reachable(t)
				inside := filepath.Join(house, "ours")
				must.Succeed(t, os.Mkdir(inside, 0o755))
				var checks []func()
				for _, file := range []string{"target", "password", "postgres.log", "pglimit.password"} {
					checks = append(checks, victim(t, filepath.Join(inside, file)))
				}
				o := Options{BinDir: plantingServer(t, "target="+filepath.Join(inside, "target")+"\nexec 2>/dev/null\n"+script+"\nexit 0\n")}
				if !temporary {
					o.DataDir = filepath.Join(house, "data")
				}
				s, err := Start(t.Context(), o)
				if err == nil {
					s.Close()
					t.Error("Start returned a server, but the program is none")
				}
				for _, check := range checks {
					check()
				}
				if entries, err := os.ReadDir(inside); err != nil || len(entries) != len(checks) {
					t.Errorf("%v in our directory, %v", entries, err)
				}
				away, _ := filepath.Glob(filepath.Join(os.TempDir(), runPrefix+"*.away"))
				for _, dir := range away {
					if info, err := os.Stat(dir); err == nil && info.IsDir() {
						os.RemoveAll(dir)
					}
				}
			})
		}
	}
}

// TestPlantedLinksAtARestart replaces what a running server made.
func TestPlantedLinksAtARestart(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	target := filepath.Join(reachable(t), "target")
	check := victim(t, target)
	must.Succeed(t, s.Stop(t.Context()))
	for _, name := range []string{logFile, givenFile} {
		_ = os.Remove(filepath.Join(s.runDir, name)) // not all exist
		must.Succeed(t, os.Symlink(target, filepath.Join(s.runDir, name)))
	}
	must.Succeed(t, s.Restart(t.Context()))
	check()
	must.Succeed(t, s.Close())
	check()
}

// TestLinksInTheData: data of another account do not make root read its own files.
func TestLinksInTheData(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"pglimit.password", "PG_VERSION"} {
		dir := filepath.Join(reachable(t), "data")
		secret := filepath.Join(filepath.Dir(dir), "secret")
		must.Succeed(t, errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(secret, []byte("hunter2"), 0o600),
			os.WriteFile(filepath.Join(dir, "pglimit.password"), nil, 0o600)))
		_ = os.Remove(filepath.Join(dir, name)) // PG_VERSION is not there
		must.Succeed(t, os.Symlink(secret, filepath.Join(dir, name)))
		if os.Geteuid() == 0 {
			must.Succeed(t, os.Chown(dir, 12345, 12345))
		}
		_, err := DataMajor(dir)
		if name == "pglimit.password" {
			_, err = Start(t.Context(), Options{DataDir: dir})
		}
		if err == nil {
			t.Fatalf("%s: what a link leads to was used", name)
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error shows the file: %v", name, err)
		}
	}
}
