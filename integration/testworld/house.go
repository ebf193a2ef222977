//go:build unix

package testworld

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

	"github.com/pglimit/pglimit/internal/must"
)

// House is a test's directory, in which the command keeps everything it makes: data,
// sockets, caches. Other users may enter it.
type House struct {
	Dir, Binary string
	As          *syscall.Credential // the user that runs the command; nil: this one
	Env         []string            // further environment of the command
}

// NewHouse creates a house and checks at the end of the test that no process runs in it.
func NewHouse(t *testing.T) *House {
	t.Helper()
	built, err := BuildCommand()
	if err != nil {
		t.Fatalf("build the command: %v", err)
	}
	h := &House{}
	if h.Dir, err = os.MkdirTemp("", "pglimit-house-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.AwaitEmpty(t)
		if left, _ := filepath.Glob(filepath.Join(h.Dir, "tmp", "*")); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		if err := os.RemoveAll(h.Dir); err != nil {
			t.Error(err)
		}
	})
	h.Binary = filepath.Join(h.Dir, "pglimit")
	// A link, not a copy: a process that another test forks meanwhile would hold the copy open
	// for writing, and it could not be run ("text file busy").
	if err := errors.Join(os.Chmod(h.Dir, 0o755), os.Link(built, h.Binary), os.Mkdir(filepath.Join(h.Dir, "tmp"), 0o755),
		os.Chmod(filepath.Join(h.Dir, "tmp"), 0o777|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	return h
}

// Data is a data directory of the command, for --data-dir.
func (h *House) Data() string { return filepath.Join(h.Dir, "data") }

// processes lists the processes with the house in their arguments: the command, the
// keeper, the server, the server's reaper.
func (h *House) processes(t *testing.T) (found []string) {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if args, err := os.ReadFile(f); err == nil && bytes.Contains(args, []byte(h.Dir)) {
			found = append(found, filepath.Base(filepath.Dir(f))+" "+strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	if len(files) > 0 {
		return found
	}
	out := must.OK(osexec.Command("ps", "-A", "-o", "pid=,args=").Output())(t)
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, h.Dir) {
			found = append(found, line)
		}
	}
	return found
}

// AwaitEmpty waits until no process runs. Unlike Eventually it also works when the test is
// over.
func (h *House) AwaitEmpty(t *testing.T) {
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

// Empty expects that no process runs right now.
func (h *House) Empty(t *testing.T, after string) {
	t.Helper()
	if left := h.processes(t); len(left) > 0 {
		t.Errorf("after %s there still run %q", after, left)
	}
}

// KillKeeper kills the keeper of h.Data() with kill -9.
func (h *House) KillKeeper(t *testing.T) {
	t.Helper()
	var state struct{ Keeper int }
	text, err := os.ReadFile(filepath.Join(h.Data(), "server.json"))
	if err = errors.Join(err, json.Unmarshal(text, &state)); err == nil {
		err = syscall.Kill(state.Keeper, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the keeper is gone", func(context.Context) (bool, error) {
		return syscall.Kill(state.Keeper, 0) == syscall.ESRCH, nil
	})
}

// Command prepares the command in the house.
func (h *House) Command(t *testing.T, args ...string) *osexec.Cmd {
	t.Helper()
	cmd := Command(t, "", append([]string{"--verbose"}, args...)...)
	cmd.Path, cmd.Args[0], cmd.Dir = h.Binary, h.Binary, h.Dir
	cmd.Env = append(cmd.Env, "TMPDIR="+filepath.Join(h.Dir, "tmp"),
		"HOME="+h.Dir, "XDG_DATA_HOME="+filepath.Join(h.Dir, "share"))
	cmd.Env = append(cmd.Env, h.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: h.As}
	return cmd
}

// FiveADay is a policy whose remaining units are 4, 3, 2, … whatever the time between
// requests.
var FiveADay = []string{"--algorithm", "fixed_window", "--limit", "5", "--period", "24h"}

// Allow requests one unit of key k and returns the remaining units. how is the part of the
// line that names the database.
func (h *House) Allow(t *testing.T, how string, flags ...string) float64 {
	t.Helper()
	code, stdout, stderr := RunCommand(t, h.Command(t, append(append([]string{"allow", "k", "--json"}, FiveADay...), flags...)...))
	var r struct{ Remaining float64 }
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 {
		t.Fatalf("allow %q: exit code %d, %v, stderr %q", flags, code, err, stderr)
	}
	if !strings.HasPrefix(stderr, "database: embedded PostgreSQL ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, how) {
		t.Errorf("allow %q: stderr %q, want one line with %q", flags, stderr, how)
	}
	return r.Remaining
}

// Live is an `allow -` that waits for its next line.
type Live struct {
	Cmd    *osexec.Cmd
	In     io.WriteCloser
	Out    *bufio.Scanner
	Stderr bytes.Buffer
}

// Start starts the command on Data.
func (h *House) Start(t *testing.T) *Live {
	t.Helper()
	l := &Live{Cmd: h.Command(t, append([]string{"allow", "-", "--json", "--data-dir", h.Data()}, FiveADay...)...)}
	l.Cmd.Stderr = &l.Stderr
	out, err := l.Cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	l.Out = bufio.NewScanner(out)
	if l.In, err = l.Cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, l.Cmd.Start())
	return l
}

// Ask requests a unit of key k and checks the remaining units.
func (l *Live) Ask(t *testing.T, remaining float64) {
	t.Helper()
	fmt.Fprintln(l.In, "k")
	var r struct{ Remaining float64 }
	if !l.Out.Scan() || json.Unmarshal(l.Out.Bytes(), &r) != nil {
		err := l.Cmd.Wait()
		t.Fatalf("no answer: %v: %s", err, &l.Stderr)
	}
	if r.Remaining != remaining {
		t.Errorf("%v remaining, want %v", r.Remaining, remaining)
	}
}

// End waits for the end and expects the exit code and a part of stderr.
func (l *Live) End(t *testing.T, code int, want string) {
	t.Helper()
	_ = l.Cmd.Wait() // the code reports it
	if got := l.Cmd.ProcessState.ExitCode(); got != code || !strings.Contains(l.Stderr.String(), want) {
		t.Errorf("exit code %d, want %d; stderr %q, want %q in it", got, code, &l.Stderr, want)
	}
}

// ExpectEnd runs the command and expects its exit code and parts of the last line on stderr.
func ExpectEnd(t *testing.T, cmd *osexec.Cmd, code int, parts ...string) {
	t.Helper()
	got, stdout, stderr := RunCommand(t, cmd)
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
