package faults

import (
	"context"
	"fmt"
	"io"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/must"
)

// row is what the table shows of a fault.
type row struct {
	name                  string
	operations, errors    int
	admitted, allowed     float64 // by tight limits
	acknowledged, unknown float64 // by all others
	counted, lost, twice  float64
	began, ended          time.Time
	p99                   [3]time.Duration // before, during, after
	back                  time.Duration
	isBack, failed        bool
}

var table []*row

// counts is what the rows of the limiter count, by place. No window of these policies ends
// and nothing leaks.
const counts = `
	SELECT policy, key, level FROM pglimit_leaky_bucket
	UNION ALL SELECT policy, key, level FROM pglimit_leaky_bucket_queue
	UNION ALL SELECT policy, key, level FROM pglimit_token_bucket
	UNION ALL SELECT policy, key, level FROM pglimit_fixed_window
	UNION ALL SELECT policy, key, current + previous FROM pglimit_sliding_window_counter
	UNION ALL SELECT policy, key, total - base FROM pglimit_sliding_window_log`

// slack is more than what leaks during a test.
const slack = 1e-3

// judge compares the ledger with the database, after the load.
func (s *scene) judge(t *testing.T, r *row) {
	t.Helper()
	r.operations, r.errors = s.times.count()
	r.p99[0], _ = s.times.p99(r.began.Add(-before), r.began, true)
	r.p99[1], _ = s.times.p99(r.began, r.ended, false)
	r.p99[2], _ = s.times.p99(r.ended.Add(r.back), r.ended.Add(r.back+second), true)
	for _, p := range s.faults.first {
		t.Error(p)
	}
	if n := s.faults.count; n > len(s.faults.first) {
		t.Errorf("and %d more like these", n-len(s.faults.first))
	}
	t.Logf("the callers met: %v", s.faults)
	for _, err := range s.fault.causes {
		if !s.faults.hasMet(err) {
			t.Errorf("no caller met the error %q: the fault has done nothing", err)
		}
	}
	s.judgeLedger(t, r)
	s.judgeOrders(t)
	var excess []error
	r.admitted, r.allowed, excess = s.books.exceeded()
	for _, err := range excess {
		t.Errorf("a tight limit admitted more than its bound: %v", err)
	}
	if r.admitted > r.allowed {
		t.Errorf("the tight limits admitted %v, and allow %v", r.admitted, r.allowed)
	}
	if r.admitted == 0 || r.acknowledged == 0 {
		t.Errorf("%v units admitted and %v acknowledged: this says nothing", r.admitted, r.acknowledged)
	}
	if full && !r.isBack {
		t.Errorf("p99 was %s before the fault, and is %s more than %v after it", ms(r.p99[0]), ms(r.p99[2]), backWithin)
	}
}

// hasUnits returns nil if units were admitted and acknowledged so far.
func (s *scene) hasUnits(context.Context) error {
	acknowledged := 0.0
	for _, a := range s.books.accounts() {
		acknowledged += a.Acknowledged
	}
	s.books.mu.Lock()
	defer s.books.mu.Unlock()
	return unless(len(s.books.admitted) > 0 && acknowledged > 0, "%d admissions, %v acknowledged", len(s.books.admitted), acknowledged)
}

// judgeLedger expects of each place: acknowledged ≤ counted ≤ acknowledged + unknown.
func (s *scene) judgeLedger(t *testing.T, r *row) {
	t.Helper()
	counted := s.sums(t, counts)
	for at, a := range s.books.accounts() {
		lost, twice, err := a.Judge(counted[at], slack)
		if err != nil {
			t.Errorf("%s of %s: %v%s", at.key, at.policy, err, s.books.history(at))
		}
		r.acknowledged += a.Acknowledged
		r.unknown += a.Unknown
		r.counted += counted[at]
		r.lost += lost
		r.twice += twice
	}
}

// sums reads units by place.
func (s *scene) sums(t *testing.T, query string) map[place]float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	rows := must.OK(s.pool.Query(ctx, query))(t)
	all := map[place]float64{}
	var at place
	var n float64
	must.OK(pgx.ForEachRow(rows, []any{&at.policy, &at.key, &n}, func() error { all[at] = n; return nil }))(t)
	return all
}

func printTable(out io.Writer) error {
	if len(table) == 0 {
		return nil
	}
	longest := 0
	for _, r := range table {
		longest = max(longest, len(r.name))
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%-*s\tOPERATIONS\tERRORS\tADMITTED\tALLOWED\tACKNOWLEDGED\tUNKNOWN\tCOUNTED\tLOST\tTWICE\tP99 BEFORE\tDURING\tAFTER\tBACK\tRESULT\t\n", longest, "FAULT")
	for _, r := range table {
		result, back := "ok", r.back.Round(100*time.Millisecond).String()
		if r.failed {
			result = "FAILED"
		}
		if !r.isBack {
			back = "never"
		}
		fmt.Fprintf(w, "%-*s\t%d\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%s\t%s\t%s\t%s\t%s\t\n", longest, r.name, r.operations, r.errors, r.admitted, r.allowed,
			r.acknowledged, r.unknown, r.counted, r.lost, r.twice, ms(r.p99[0]), ms(r.p99[1]), ms(r.p99[2]), back, result)
	}
	return w.Flush()
}

func ms(d time.Duration) string {
	if d == noAnswer {
		return "none"
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}
