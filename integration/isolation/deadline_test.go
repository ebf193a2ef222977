package isolation

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// TestShortDeadlinesDoNotCollapse: callers whose deadline is twice the time in which 99 %
// of them get their answers still get most of them: a caller that leaves costs no
// connection.
func TestShortDeadlinesDoNotCollapse(t *testing.T) {
	pool := bed.Connect(t, bed.NewDatabase(t), bed.FourConnections)
	for _, verb := range sorted(verbs(nil, bucket("names"))) {
		t.Run(verb, func(t *testing.T) {
			l, err := limiter.New(pool, nil)
			if err != nil {
				t.Fatal(err)
			}
			call := verbs(l, bucket("deadline"))[verb]
			each := func(ctx context.Context, i int) (limiter.Result, error) { return call(ctx, fmt.Sprint("key-", i)) }
			during(50*time.Millisecond, 32, 0, each)
			closed := func() int64 { s := pool.Stat(); return s.NewConnsCount() - int64(s.TotalConns()) }
			before := closed()
			patient := during(150*time.Millisecond, 32, 0, each)
			deadline := 2 * patient.p99()
			hurried := during(150*time.Millisecond, 32, 0, func(ctx context.Context, i int) (limiter.Result, error) {
				ctx, cancel := context.WithTimeout(ctx, deadline)
				defer cancel()
				return each(ctx, i)
			})
			t.Logf("patient: %v; with %v: %v; goodput %.2f, %d connections lost", patient, deadline, hurried,
				float64(len(hurried.took))/float64(len(patient.took)), closed()-before)
			if 2*len(hurried.took) < len(patient.took) {
				t.Errorf("%d answers of %d", len(hurried.took), len(patient.took))
			}
			// Much shorter deadlines leave requests without an answer, and cost no
			// connection.
			during(100*time.Millisecond, 32, 0, func(ctx context.Context, i int) (limiter.Result, error) {
				ctx, cancel := context.WithTimeout(ctx, patient.p99()/20)
				defer cancel()
				return each(ctx, i)
			})
			if n := closed() - before; n > 0 {
				t.Errorf("%d connections were lost", n)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
