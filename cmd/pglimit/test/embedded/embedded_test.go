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

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/must"
)

// The tests named TestEmbedded… start servers of this machine; make test leaves them out
// if none is installed.

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
			h := newHouse(t)
			if h.as = as; as != nil {
				must.Succeed(t, os.Chown(h.dir, int(as.Uid), int(as.Gid)))
			}
			for _, want := range []float64{4, 3} {
				for _, flags := range [][]string{{"--embedded"}, {"--data-dir", h.data()}} {
					if got := h.allow(t, "(started)", flags...); got != want {
						t.Errorf("%q: %v remaining, want %v", flags, got, want)
					}
					h.empty(t, "allow")
				}
			}
			if _, err := os.Stat(filepath.Join(h.dir, "share", "pglimit", "postgresql", "data", "PG_VERSION")); err != nil {
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
			h := newHouse(t)
			starter := h.start(t)
			starter.ask(t, 4)
			joiner := h.start(t)
			joiner.ask(t, 3)
			first, last := joiner, starter
			if starterEndsFirst {
				first, last = starter, joiner
			}
			first.in.Close()
			first.end(t, 0, "1 decision ")
			last.ask(t, 2)
			last.in.Close()
			last.end(t, 0, "2 decisions")
			h.empty(t, "the last command's end")
			for l, how := range map[*live]string{starter: "(started)", joiner: "(running already)"} {
				if !strings.Contains(l.stderr.String(), how) {
					t.Errorf("stderr %q, want %q in it", &l.stderr, how)
				}
			}
		})
	}
}

// TestEmbeddedStartsOnce starts commands at once on a directory that does not exist yet.
// They end in any order, and no request is lost.
func TestEmbeddedStartsOnce(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var all [4]*live
	for i := range all {
		all[i] = h.start(t)
		fmt.Fprintln(all[i].in, "k")
		all[i].in.Close()
	}
	started := 0
	for _, l := range all {
		l.out.Scan()
		l.end(t, 0, "1 allowed")
		started += strings.Count(l.stderr.String(), "(started)")
	}
	if started == 0 {
		t.Error("none says that it started the server")
	}
	h.empty(t, "the last command's end")
	if got := h.allow(t, "(started)", "--data-dir", h.data()); got != 0 {
		t.Errorf("%v remaining after five requests, want 0", got)
	}
}

func TestEmbeddedAfterKill(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	first := h.start(t)
	first.ask(t, 4)
	must.Succeed(t, first.cmd.Process.Kill())
	first.end(t, -1, "(started)")
	if got := h.allow(t, "", "--data-dir", h.data()); got != 3 {
		t.Errorf("after kill -9: %v remaining, want 3", got)
	}
	// No command follows: the server ends by itself.
	second := h.start(t)
	second.ask(t, 2)
	must.Succeed(t, second.cmd.Process.Kill())
	second.end(t, -1, "database: ")
	h.awaitEmpty(t)

	// The keeper is killed while a command is working.
	third := h.start(t)
	third.ask(t, 1)
	h.killKeeper(t)
	if got := h.allow(t, "(started)", "--data-dir", h.data()); got != 0 {
		t.Errorf("after kill -9 of the keeper: %v remaining, want 0", got)
	}
	third.in.Close()
	third.end(t, 0, "1 decision ")
}

func TestEmbeddedEndsOnInterrupt(t *testing.T) {
	t.Parallel()
	for name, until := range map[string]func(t *testing.T, h *house, l *live){
		"at work": func(t *testing.T, _ *house, l *live) { l.ask(t, 4) },
		"while it makes the data": func(t *testing.T, h *house, l *live) {
			bed.Eventually(t, "initdb works", func(context.Context) (bool, error) {
				_, err := os.Stat(filepath.Join(h.data(), "data.new", "base"))
				_, late := os.Stat(filepath.Join(h.data(), "data"))
				return err == nil || late == nil, nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			l := h.start(t)
			until(t, h, l)
			must.Succeed(t, l.cmd.Process.Signal(os.Interrupt))
			l.end(t, 130, "interrupted")
			h.empty(t, "Ctrl-C")
			h.allow(t, "(started)", "--data-dir", h.data())
		})
	}
}

// TestEmbeddedFullDisk limits the size of files, which works as any user; initdb meets the
// limit as it would a full disk. As root it also fills a disk, before and after the data
// are made.
func TestEmbeddedFullDisk(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	allow := append([]string{"allow", "k", "--data-dir", h.data()}, fiveADay...)
	limited := h.command(t)
	limited.Path = "/bin/sh"
	limited.Args = append([]string{"sh", "-c", `ulimit -f 200 && exec "$0" "$@"`, h.binary}, allow...)
	expect(t, limited, 3, h.data(), "no space for its data", "name another --data-dir", "File too large")
	h.empty(t, "a failed start")
	if got := h.allow(t, "(started)", "--data-dir", h.data()); got != 4 {
		t.Errorf("%v remaining once there is room, want 4", got)
	}
	if os.Geteuid() != 0 {
		return
	}

	small := filepath.Join(h.dir, "small")
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
		onSmall := append([]string{"allow", "k", "--data-dir", small}, fiveADay...)
		if size != "5m" {
			if got := h.allow(t, "(started)", "--data-dir", small); got != 4 {
				t.Errorf("%v remaining, want 4", got)
			}
			fill := must.OK(os.Create(filepath.Join(small, "filler")))(t)
			if _, err := io.Copy(fill, zeros{}); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("fill the disk: %v", err)
			}
			fill.Close()
		}
		expect(t, h.command(t, onSmall...), 3, small, "no space for its data", "name another --data-dir", "o space left")
		h.empty(t, "a failed start")
		if size != "5m" {
			must.Succeed(t, os.Remove(filepath.Join(small, "filler")))
			if got := h.allow(t, "(started)", "--data-dir", small); got != 3 {
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
	h := newHouse(t)
	other := filepath.Join(h.dir, "other")
	letter := filepath.Join(other, "letter.txt")
	must.Succeed(t, errors.Join(os.Mkdir(other, 0o750), os.WriteFile(letter, []byte("Dear …"), 0o600)))
	expect(t, h.command(t, "allow", "k", "--limit", "5", "--data-dir", other), 2, other, "has other content (letter.txt)", "name an empty or new directory")
	expect(t, h.command(t, "allow", "k", "--limit", "5", "--data-dir", letter), 2, letter, "not a directory")
	if entries, err := os.ReadDir(other); err != nil || len(entries) != 1 {
		t.Errorf("the directory was changed: %v, %v", entries, err)
	}
	if info, err := os.Stat(other); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the directory's mode was changed: %v, %v", info.Mode(), err)
	}
	if os.Geteuid() != 0 {
		return
	}
	theirs, closed := filepath.Join(h.dir, "theirs"), filepath.Join(h.dir, "closed")
	must.Succeed(t, errors.Join(os.Mkdir(theirs, 0o755), os.Chown(theirs, 12345, 12345), os.Mkdir(closed, 0o700)))
	expect(t, h.command(t, "allow", "k", "--limit", "5", "--data-dir", theirs), 2, theirs, "belongs to user 12345")
	expect(t, h.command(t, "allow", "k", "--limit", "5", "--data-dir", filepath.Join(closed, "data")), 3, "cannot reach", closed, "chmod o+x")
}

func TestCommandWhichDatabase(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	// One command from each file that needs a database.
	for _, line := range []string{"allow k --limit 5", "migrate up", "migrate status"} {
		args := strings.Fields(line)
		expect(t, h.command(t, args...), 2, "DATABASE_URL", "--database-url", "--embedded", "--data-dir")
		for _, c := range []struct{ flags, one, other string }{
			{"--database-url postgres://app@127.0.0.1:1/shop --embedded", "--database-url", "--embedded"},
			{"--database-url postgres://app@127.0.0.1:1/shop --data-dir d", "--database-url", "--data-dir"},
			{"--data-dir=", "--data-dir is empty", "name a directory"},
		} {
			expect(t, h.command(t, append(args, strings.Fields(c.flags)...)...), 2, c.one, c.other)
		}
	}
	empty := filepath.Join(h.dir, "empty")
	must.Succeed(t, os.Mkdir(empty, 0o755))
	none := h.command(t, "allow", "k", "--limit", "5", "--embedded")
	none.Env = append(none.Env, "PGBIN="+empty, "PATH="+empty)
	expect(t, none, 3, "no PostgreSQL server found", empty, "install one", "let Docker run one")
	expect(t, bed.Command(t, bed.EmptyDatabase(t), "allow", "k", "--limit", "5"), 3, "no pglimit tables", "`pglimit migrate up`")
}

func TestEmbeddedBeforeTheEnvironment(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	cmd := h.command(t, append([]string{"allow", "k", "--embedded"}, fiveADay...)...)
	cmd.Env = append(cmd.Env, "DATABASE_URL=postgres://nobody@127.0.0.1:1/none")
	if code, _, stderr := bed.RunCommand(t, cmd); code != 0 || !strings.Contains(stderr, "(started; not DATABASE_URL)") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	// demo uses it by default; migrate works on it.
	if code, _, stderr := bed.RunCommand(t, h.command(t, "demo", "--json")); code != 0 || !strings.Contains(stderr, "(started)") {
		t.Errorf("demo: exit code %d, stderr %q", code, stderr)
	}
	for _, c := range [][2]string{{"down --to 0", "down 00003"}, {"status", "pending"}, {"up", "up 00001"}, {"up", "nothing to do"}} {
		code, stdout, stderr := bed.RunCommand(t, h.command(t, append([]string{"migrate", "--embedded"}, strings.Fields(c[0])...)...))
		if code != 0 || !strings.Contains(stdout, c[1]) {
			t.Errorf("migrate %s: exit code %d, stdout %q, stderr %q", c[0], code, stdout, stderr)
		}
	}
	h.empty(t, "migrate")
}
