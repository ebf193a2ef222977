package proc

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
)

func TestParse(t *testing.T) {
	p, err := parse("42 (a) b (c) S 7 42 42 0 -1 0 105 0 0 0 12 5 30 4 20 0 1 0 116953 3133440 417\n")
	if want := (process{parent: 7, used: 170 * time.Millisecond, waited: 340 * time.Millisecond}); err != nil || p != want {
		t.Errorf("%+v, %v; want %+v", p, err, want)
	}
	for _, line := range []string{"", "42 (a)", "42 (a) S 7 42 42 0 -1 0 105 0 0 0 12 5 30", "42 (a) S x 42 42 0 -1 0 105 0 0 0 12 5 30 4 20"} {
		if p, err := parse(line); err == nil {
			t.Errorf("%q is %+v, want an error", line, p)
		}
	}
}

// burn uses some processor time in a shell.
const burn = `i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; `

// TestTree: a process's own time, that of a child that runs, and that of one that has ended
// count, each once. The system's sum of them, once all have ended, is the truth.
func TestTree(t *testing.T) {
	cmd := exec.Command("sh", "-c", burn+`sh -c '`+burn+`exit 0'; sh -c '`+burn+`echo ready; read x; exit 0'; exit 0`)
	in := must.OK(cmd.StdinPipe())(t)
	out := must.OK(cmd.StdoutPipe())(t)
	must.Succeed(t, cmd.Start())
	must.OK(bufio.NewReader(out).ReadString('\n'))(t)
	got := must.OK(Tree(cmd.Process.Pid)())(t)
	must.OK(io.WriteString(in, "go on\n"))(t)
	must.Succeed(t, cmd.Wait())
	all := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	// What is left to do is next to nothing, and the sum of ended children has ticks.
	if got > all+2*tick || got < all*9/10-2*tick {
		t.Errorf("the tree has used %v, want about %v", got, all)
	}
}

func TestTreeNeedsTheProcess(t *testing.T) {
	cmd := exec.Command("true")
	must.Succeed(t, cmd.Run())
	if used, err := Tree(cmd.Process.Pid)(); err == nil {
		t.Errorf("a process that has ended has used %v, want an error", used)
	}
}

// TestMemory: the figures of this process are plausible, where the system has them.
func TestMemory(t *testing.T) {
	_, none := os.Stat("/proc/self/smaps_rollup")
	m, err := ReadMemory(os.Getpid())
	if (err == nil) != (none == nil) || err == nil && (m.Own <= 0 || m.Share <= m.Own || m.Resident < m.Share) {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := ReadMemory(-1); err == nil {
		t.Errorf("a process that is not there: %+v", m)
	}
}
