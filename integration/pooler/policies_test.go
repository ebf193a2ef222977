package pooler

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// TestPoliciesThroughPooler: a pooler in transaction mode accepts LISTEN and delivers
// nothing. Policies are polled then, with one connection of the pooler's or several.
func TestPoliciesThroughPooler(t *testing.T) {
	t.Parallel()
	for _, connections := range []int{1, 3} {
		address := testworld.NewDatabase(t)
		direct, pooled := testworld.Connect(t, address), testworld.Connect(t, startPgBouncer(t, address, connections))
		logs, loaded := new(testworld.Buffer), make(chan int64, 100)
		p := must.OK(policies.Open(t.Context(), pooled, &policies.Config{
			PollEvery: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(logs, nil)), OnChange: func(v int64) { loaded <- v },
		}))(t)
		testworld.Receive(t, loaded, "the first load")
		for i := range 3 {
			testworld.Exec(t, direct, `INSERT INTO pglimit_override (policy, key, unlimited) VALUES ('p', clock_timestamp()::text, true)`)
			if v := testworld.Receive(t, loaded, "the change"); v != int64(i+1) {
				t.Errorf("version %d", v)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if text := logs.String(); text != "" {
			t.Errorf("logged: %s", text)
		}
	}
}

// TestPoliciesSharePoolerConnection: several processes share one connection of the pooler,
// which loses prepared statements. All of them write and follow.
func TestPoliciesSharePoolerConnection(t *testing.T) {
	t.Parallel()
	address := startPgBouncer(t, testworld.NewDatabase(t), 1)
	policy := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Second}
	var all []*policies.Policies
	for range 3 {
		p := must.OK(policies.Open(t.Context(), testworld.Connect(t, address), &policies.Config{PollEvery: 10 * time.Millisecond}))(t)
		t.Cleanup(func() { _ = p.Close() })
		all = append(all, p)
	}
	for round := range 3 {
		for _, p := range all {
			policy.Limit++
			if _, err := p.Apply(t.Context(), policies.Edit{Set: []policies.Stored{{Policy: policy}}}); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
			if _, err := p.History(t.Context(), "p", 1); err != nil {
				t.Error(err)
			}
		}
	}
	for _, p := range all {
		testworld.Eventually(t, "all have the last change", func(context.Context) (bool, error) {
			got, err := p.Get("p")
			return got == policy, err
		})
	}
}
