package faults

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
)

// full selects all faults at full length.
var full = testworld.Size(false, true)

// fault is a row of the table.
type fault struct {
	name  string
	quick bool // go test runs it without PGLIMIT_TEST_FULL too, in a short form

	// server makes the server. Default: the usual one, with fsync on, which all faults
	// without this field share. The test's end must close it.
	server func(t *testing.T) *server
	// over is what the load uses, a limiter each. Default: two of overPGX.
	over []driver
	// relaxed: half of the budgets that are requested are Relaxed.
	relaxed bool
	// expect are errors that the fault may cause besides those of outages and overload.
	expect []error
	// causes are errors that callers must meet: else the fault has done nothing.
	causes []error
	// do does the fault and undoes it, while the load runs.
	do func(ctx context.Context, t *testing.T, s *scene)
	// check, if set, checks more after the load has ended, before the limiters are closed.
	check func(t *testing.T, s *scene)
}

// The times of a fault's phases: the load alone before it, and the least after it. A fault
// has to be over after longest.
var (
	before  = testworld.Size(400*time.Millisecond, 5*time.Second)
	after   = testworld.Size(400*time.Millisecond, 3*time.Second)
	longest = 10 * time.Minute // prevents a hang
)

// backWithin is the longest time after a fault until p99 is normal again. The short form
// only looks.
var backWithin = testworld.Size(time.Second, 10*time.Second)

// TestFaults runs the faults one after another: each of them keeps the machine busy. On a
// Citus cluster they are those of a cluster.
func TestFaults(t *testing.T) {
	all := faults
	if os.Getenv("PGLIMIT_TEST_BACKEND") == "citus" {
		all = onCluster(t)
	}
	for _, f := range all {
		if full || f.quick {
			t.Run(f.name, f.run)
		}
	}
}

func (f fault) run(t *testing.T) {
	s := newScene(t, f)
	row := &row{name: f.name}
	table = append(table, row)
	defer func() { row.failed = t.Failed() }()

	s.start()
	s.let(before)
	eventually(t, "units are admitted and acknowledged", s.hasUnits) // a busy machine may only connect in before
	row.began = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	f.do(ctx, t, s)
	row.ended = time.Now()
	row.back, row.isBack = s.awaitNormal(row.began, row.ended)
	s.let(after - time.Since(row.ended))
	s.stop(t)
	if f.check != nil {
		f.check(t, s)
	}
	s.closeAll(t)
	s.judge(t, row)
}
