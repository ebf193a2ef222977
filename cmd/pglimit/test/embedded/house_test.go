//go:build unix

package embedded

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/must"
)

// house is a test's directory, in which the command keeps everything it makes: data,
// sockets, caches. Other users may enter it.
type house struct {
	dir, binary string
	as          *syscall.Credential // the user that runs the command; nil: this one
	env         []string            // further environment of the command
}

// newHouse creates a house and checks at the end of the test that no process runs in it.
func newHouse(t *testing.T) *house {
	t.Helper()
	built, err := bed.BuildCommand()
	if err != nil {
		t.Fatalf("build the command: %v", err)
	}
	h := &house{}
	if h.dir, err = os.MkdirTemp("", "pglimit-house-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.awaitEmpty(t)
		if left, _ := filepath.Glob(filepath.Join(h.dir, "tmp", "*")); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		if err := os.RemoveAll(h.dir); err != nil {
			t.Error(err)
		}
	})
	h.binary = filepath.Join(h.dir, "pglimit")
	// A link, not a copy: a process that another test forks meanwhile would hold the copy open
	// for writing, and it could not be run ("text file busy").
	if err := errors.Join(os.Chmod(h.dir, 0o755), os.Link(built, h.binary), os.Mkdir(filepath.Join(h.dir, "tmp"), 0o755),
		os.Chmod(filepath.Join(h.dir, "tmp"), 0o777|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *house) data() string { return filepath.Join(h.dir, "data") }

// processes lists the processes with the house in their arguments: the command, the
// keeper, the server, the server's reaper.
func (h *house) processes(t *testing.T) (found []string) {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if args, err := os.ReadFile(f); err == nil && bytes.Contains(args, []byte(h.dir)) {
			found = append(found, filepath.Base(filepath.Dir(f))+" "+strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	if len(files) > 0 {
		return found
	}
	out := must.OK(osexec.Command("ps", "-A", "-o", "pid=,args=").Output())(t)
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, h.dir) {
			found = append(found, line)
		}
	}
	return found
}

// awaitEmpty waits until no process runs. Unlike Eventually it also works when the test is
// over.
func (h *house) awaitEmpty(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C { // prevents a hang
		left := h.processes(t)
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("there still run %q", left)
		}
	}
}

// empty expects that no process runs right now.
func (h *house) empty(t *testing.T, after string) {
	t.Helper()
	if left := h.processes(t); len(left) > 0 {
		t.Errorf("after %s there still run %q", after, left)
	}
}

// killKeeper kills the keeper of h.data() with kill -9.
func (h *house) killKeeper(t *testing.T) {
	t.Helper()
	var state struct{ Keeper int }
	text, err := os.ReadFile(filepath.Join(h.data(), "server.json"))
	if err = errors.Join(err, json.Unmarshal(text, &state)); err == nil {
		err = syscall.Kill(state.Keeper, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
	bed.Eventually(t, "the keeper is gone", func(context.Context) (bool, error) {
		return syscall.Kill(state.Keeper, 0) == syscall.ESRCH, nil
	})
}

func (h *house) command(t *testing.T, args ...string) *osexec.Cmd {
	t.Helper()
	cmd := bed.Command(t, "", append([]string{"--verbose"}, args...)...)
	cmd.Path, cmd.Args[0], cmd.Dir = h.binary, h.binary, h.dir
	cmd.Env = append(cmd.Env, "TMPDIR="+filepath.Join(h.dir, "tmp"),
		"HOME="+h.dir, "XDG_DATA_HOME="+filepath.Join(h.dir, "share"))
	cmd.Env = append(cmd.Env, h.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: h.as}
	return cmd
}

// fiveADay is a policy whose remaining units are 4, 3, 2, … whatever the time between
// requests.
var fiveADay = []string{"--algorithm", "fixed_window", "--limit", "5", "--period", "24h"}

// allow requests one unit of key k and returns the remaining units. how is the part of the
// line that names the database.
func (h *house) allow(t *testing.T, how string, flags ...string) float64 {
	t.Helper()
	code, stdout, stderr := bed.RunCommand(t, h.command(t, append(append([]string{"allow", "k", "--json"}, fiveADay...), flags...)...))
	var r struct{ Remaining float64 }
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 {
		t.Fatalf("allow %q: exit code %d, %v, stderr %q", flags, code, err, stderr)
	}
	if !strings.HasPrefix(stderr, "database: embedded PostgreSQL ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, how) {
		t.Errorf("allow %q: stderr %q, want one line with %q", flags, stderr, how)
	}
	return r.Remaining
}

// live is an `allow -` that waits for its next line.
type live struct {
	cmd    *osexec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr bytes.Buffer
}

func (h *house) start(t *testing.T) *live {
	t.Helper()
	l := &live{cmd: h.command(t, append([]string{"allow", "-", "--json", "--data-dir", h.data()}, fiveADay...)...)}
	l.cmd.Stderr = &l.stderr
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	l.out = bufio.NewScanner(out)
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, l.cmd.Start())
	return l
}

// ask requests a unit of key k and checks the remaining units.
func (l *live) ask(t *testing.T, remaining float64) {
	t.Helper()
	fmt.Fprintln(l.in, "k")
	var r struct{ Remaining float64 }
	if !l.out.Scan() || json.Unmarshal(l.out.Bytes(), &r) != nil {
		err := l.cmd.Wait()
		t.Fatalf("no answer: %v: %s", err, &l.stderr)
	}
	if r.Remaining != remaining {
		t.Errorf("%v remaining, want %v", r.Remaining, remaining)
	}
}

// end waits for the end and expects the exit code and a part of stderr.
func (l *live) end(t *testing.T, code int, want string) {
	t.Helper()
	_ = l.cmd.Wait() // the code reports it
	if got := l.cmd.ProcessState.ExitCode(); got != code || !strings.Contains(l.stderr.String(), want) {
		t.Errorf("exit code %d, want %d; stderr %q, want %q in it", got, code, &l.stderr, want)
	}
}

// expect runs the command and expects its exit code and parts of the last line on stderr.
func expect(t *testing.T, cmd *osexec.Cmd, code int, parts ...string) {
	t.Helper()
	got, stdout, stderr := bed.RunCommand(t, cmd)
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	last := lines[len(lines)-1]
	if got != code || stdout != "" {
		t.Errorf("%q: exit code %d, want %d; stdout %q", cmd.Args, got, code, stdout)
	}
	for _, part := range parts {
		if !strings.Contains(last, part) {
			t.Errorf("%q: stderr ends %q, want %q in it", cmd.Args, last, part)
		}
	}
}
