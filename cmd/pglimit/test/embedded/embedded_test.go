//go:build unix

package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// TestEmbeddedKeepsCounting also runs as another user if this one is root.
func TestEmbeddedKeepsCounting(t *testing.T) {
	t.Parallel()
	users := map[string]*syscall.Credential{"us": nil}
	if os.Geteuid() == 0 {
		u := must.OK(user.Lookup("nobody"))(t)
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		must.Succeed(t, errors.Join(err1, err2))
		users[u.Username] = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	for name, as := range users {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := testworld.NewHouse(t)
			if h.As = as; as != nil {
				must.Succeed(t, os.Chown(h.Dir, int(as.Uid), int(as.Gid)))
			}
			for _, want := range []float64{4, 3} {
				for _, flags := range [][]string{{"--embedded"}, {"--data-dir", h.Data()}} {
					if got := h.Allow(t, "(started)", flags...); got != want {
						t.Errorf("%q: %v remaining, want %v", flags, got, want)
					}
					h.Empty(t, "allow")
				}
			}
			if _, err := os.Stat(filepath.Join(h.Dir, "share", "pglimit", "postgresql", "data", "PG_VERSION")); err != nil {
				t.Errorf("the data are not in the user's data directory: %v", err)
			}
		})
	}
}

func TestEmbeddedIsShared(t *testing.T) {
	t.Parallel()
	for name, starterEndsFirst := range map[string]bool{"starter ends first": true, "starter ends last": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := testworld.NewHouse(t)
			starter := h.Start(t)
			starter.Ask(t, 4)
			joiner := h.Start(t)
			joiner.Ask(t, 3)
			first, last := joiner, starter
			if starterEndsFirst {
				first, last = starter, joiner
			}
			first.In.Close()
			first.End(t, 0, "1 decision ")
			last.Ask(t, 2)
			last.In.Close()
			last.End(t, 0, "2 decisions")
			h.Empty(t, "the last command's end")
			for l, how := range map[*testworld.Live]string{starter: "(started)", joiner: "(running already)"} {
				if !strings.Contains(l.Stderr.String(), how) {
					t.Errorf("stderr %q, want %q in it", &l.Stderr, how)
				}
			}
		})
	}
}

// TestEmbeddedStartsOnce starts commands at once on a directory that does not exist yet.
// They end in any order, and no request is lost.
func TestEmbeddedStartsOnce(t *testing.T) {
	t.Parallel()
	h := testworld.NewHouse(t)
	var all [4]*testworld.Live
	for i := range all {
		all[i] = h.Start(t)
		fmt.Fprintln(all[i].In, "k")
		all[i].In.Close()
	}
	started := 0
	for _, l := range all {
		l.Out.Scan()
		l.End(t, 0, "1 allowed")
		started += strings.Count(l.Stderr.String(), "(started)")
	}
	if started == 0 {
		t.Error("none says that it started the server")
	}
	h.Empty(t, "the last command's end")
	if got := h.Allow(t, "(started)", "--data-dir", h.Data()); got != 0 {
		t.Errorf("%v remaining after five requests, want 0", got)
	}
}

func TestEmbeddedAfterKill(t *testing.T) {
	t.Parallel()
	h := testworld.NewHouse(t)
	first := h.Start(t)
	first.Ask(t, 4)
	must.Succeed(t, first.Cmd.Process.Kill())
	first.End(t, -1, "(started)")
	if got := h.Allow(t, "", "--data-dir", h.Data()); got != 3 {
		t.Errorf("after kill -9: %v remaining, want 3", got)
	}
	// No command follows: the server ends by itself.
	second := h.Start(t)
	second.Ask(t, 2)
	must.Succeed(t, second.Cmd.Process.Kill())
	second.End(t, -1, "database: ")
	h.AwaitEmpty(t)

	// The keeper is killed while a command is working.
	third := h.Start(t)
	third.Ask(t, 1)
	h.KillKeeper(t)
	if got := h.Allow(t, "(started)", "--data-dir", h.Data()); got != 0 {
		t.Errorf("after kill -9 of the keeper: %v remaining, want 0", got)
	}
	third.In.Close()
	third.End(t, 0, "1 decision ")
}

func TestEmbeddedEndsOnInterrupt(t *testing.T) {
	t.Parallel()
	for name, until := range map[string]func(t *testing.T, h *testworld.House, l *testworld.Live){
		"at work": func(t *testing.T, _ *testworld.House, l *testworld.Live) { l.Ask(t, 4) },
		"while it makes the data": func(t *testing.T, h *testworld.House, l *testworld.Live) {
			testworld.Eventually(t, "initdb works", func(context.Context) (bool, error) {
				_, err := os.Stat(filepath.Join(h.Data(), "data.new", "base"))
				_, late := os.Stat(filepath.Join(h.Data(), "data"))
				return err == nil || late == nil, nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := testworld.NewHouse(t)
			l := h.Start(t)
			until(t, h, l)
			must.Succeed(t, l.Cmd.Process.Signal(os.Interrupt))
			l.End(t, 130, "interrupted")
			h.Empty(t, "Ctrl-C")
			h.Allow(t, "(started)", "--data-dir", h.Data())
		})
	}
}

// TestEmbeddedFullDisk limits the size of files, which works as any user; initdb meets the
// limit as it would a full disk. As root it also fills a disk, before and after the data
// are made.
func TestEmbeddedFullDisk(t *testing.T) {
	t.Parallel()
	h := testworld.NewHouse(t)
	allow := append([]string{"allow", "k", "--data-dir", h.Data()}, testworld.FiveADay...)
	limited := h.Command(t)
	limited.Path = "/bin/sh"
	limited.Args = append([]string{"sh", "-c", `ulimit -f 200 && exec "$0" "$@"`, h.Binary}, allow...)
	testworld.ExpectEnd(t, limited, 3, h.Data(), "no space for its data", "name another --data-dir", "File too large")
	h.Empty(t, "a failed start")
	if got := h.Allow(t, "(started)", "--data-dir", h.Data()); got != 4 {
		t.Errorf("%v remaining once there is room, want 4", got)
	}
	if os.Geteuid() != 0 {
		return
	}

	small := filepath.Join(h.Dir, "small")
	mount := func(size string) {
		t.Helper()
		if out, err := osexec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "none", small).CombinedOutput(); err != nil {
			t.Logf("root may not mount here, so the limit on files has to do: %v: %s", err, out)
			return
		}
		t.Cleanup(func() {
			if out, err := osexec.Command("umount", small).CombinedOutput(); err != nil {
				t.Errorf("umount: %v: %s", err, out)
			}
		})
		onSmall := append([]string{"allow", "k", "--data-dir", small}, testworld.FiveADay...)
		if size != "5m" {
			if got := h.Allow(t, "(started)", "--data-dir", small); got != 4 {
				t.Errorf("%v remaining, want 4", got)
			}
			fill := must.OK(os.Create(filepath.Join(small, "filler")))(t)
			if _, err := io.Copy(fill, zeros{}); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("fill the disk: %v", err)
			}
			fill.Close()
		}
		testworld.ExpectEnd(t, h.Command(t, onSmall...), 3, small, "no space for its data", "name another --data-dir", "o space left")
		h.Empty(t, "a failed start")
		if size != "5m" {
			must.Succeed(t, os.Remove(filepath.Join(small, "filler")))
			if got := h.Allow(t, "(started)", "--data-dir", small); got != 3 {
				t.Errorf("%v remaining once there is room again, want 3", got)
			}
		}
	}
	must.Succeed(t, os.Mkdir(small, 0o755))
	mount("5m")
	mount("100m") // over the other
}

// zeros is a reader of endless zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestEmbeddedUnusableDataDir: a data directory with other content is refused and left as it is.
func TestEmbeddedUnusableDataDir(t *testing.T) {
	t.Parallel()
	h := testworld.NewHouse(t)
	other := filepath.Join(h.Dir, "other")
	letter := filepath.Join(other, "letter.txt")
	must.Succeed(t, errors.Join(os.Mkdir(other, 0o750), os.WriteFile(letter, []byte("Dear …"), 0o600)))
	testworld.ExpectEnd(t, h.Command(t, "allow", "k", "--limit", "5", "--data-dir", other), 2, other, "has other content (letter.txt)", "name an empty or new directory")
	testworld.ExpectEnd(t, h.Command(t, "allow", "k", "--limit", "5", "--data-dir", letter), 2, letter, "not a directory")
	if entries, err := os.ReadDir(other); err != nil || len(entries) != 1 {
		t.Errorf("the directory was changed: %v, %v", entries, err)
	}
	if info, err := os.Stat(other); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the directory's mode was changed: %v, %v", info.Mode(), err)
	}
	if os.Geteuid() != 0 {
		return
	}
	theirs, closed := filepath.Join(h.Dir, "theirs"), filepath.Join(h.Dir, "closed")
	must.Succeed(t, errors.Join(os.Mkdir(theirs, 0o755), os.Chown(theirs, 12345, 12345), os.Mkdir(closed, 0o700)))
	testworld.ExpectEnd(t, h.Command(t, "allow", "k", "--limit", "5", "--data-dir", theirs), 2, theirs, "belongs to user 12345")
	testworld.ExpectEnd(t, h.Command(t, "allow", "k", "--limit", "5", "--data-dir", filepath.Join(closed, "data")), 3, "cannot reach", closed, "chmod o+x")
}

func TestCommandWhichDatabase(t *testing.T) {
	t.Parallel()
	h := testworld.NewHouse(t)
	// One command from each file that needs a database.
	for _, line := range []string{"allow k --limit 5", "migrate up", "migrate status"} {
		args := strings.Fields(line)
		testworld.ExpectEnd(t, h.Command(t, args...), 2, "DATABASE_URL", "--database-url", "--embedded", "--data-dir")
		for _, c := range []struct{ flags, one, other string }{
			{"--database-url postgres://app@127.0.0.1:1/shop --embedded", "--database-url", "--embedded"},
			{"--database-url postgres://app@127.0.0.1:1/shop --data-dir d", "--database-url", "--data-dir"},
			{"--data-dir=", "--data-dir is empty", "name a directory"},
		} {
			testworld.ExpectEnd(t, h.Command(t, append(args, strings.Fields(c.flags)...)...), 2, c.one, c.other)
		}
	}
	empty := filepath.Join(h.Dir, "empty")
	must.Succeed(t, os.Mkdir(empty, 0o755))
	none := h.Command(t, "allow", "k", "--limit", "5", "--embedded")
	none.Env = append(none.Env, "PGBIN="+empty, "PATH="+empty)
	testworld.ExpectEnd(t, none, 3, "no PostgreSQL server found", empty, "install one", "let Docker run one")
	testworld.ExpectEnd(t, testworld.Command(t, testworld.EmptyDatabase(t), "allow", "k", "--limit", "5"), 3, "no pglimit tables", "`pglimit migrate up`")
}

func TestEmbeddedBeforeTheEnvironment(t *testing.T) {
	t.Parallel()
	h := testworld.NewHouse(t)
	cmd := h.Command(t, append([]string{"allow", "k", "--embedded"}, testworld.FiveADay...)...)
	cmd.Env = append(cmd.Env, "DATABASE_URL=postgres://nobody@127.0.0.1:1/none")
	if code, _, stderr := testworld.RunCommand(t, cmd); code != 0 || !strings.Contains(stderr, "(started; not DATABASE_URL)") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	// demo uses it by default; migrate works on it.
	if code, _, stderr := testworld.RunCommand(t, h.Command(t, "demo", "--json")); code != 0 || !strings.Contains(stderr, "(started)") {
		t.Errorf("demo: exit code %d, stderr %q", code, stderr)
	}
	for _, c := range [][2]string{{"down --to 0 --yes", "down 00003"}, {"status", "pending"}, {"up", "up 00001"}, {"up", "nothing to do"}} {
		code, stdout, stderr := testworld.RunCommand(t, h.Command(t, append([]string{"migrate", "--embedded"}, strings.Fields(c[0])...)...))
		if code != 0 || !strings.Contains(stdout, c[1]) {
			t.Errorf("migrate %s: exit code %d, stdout %q, stderr %q", c[0], code, stdout, stderr)
		}
	}
	h.Empty(t, "migrate")
}
