package crash

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// commitSettings are values of synchronous_commit: waits for nothing, for standby servers,
// and for the disk only.
var commitSettings = []string{"off", "on", "local"}

// policies returns every variant with each durability, under different names.
func policies(name string) (all []limiter.Policy) {
	for _, p := range testworld.Variants(10, 1000*time.Hour) {
		for _, d := range testworld.Durabilities {
			q := p
			q.Durability, q.Name = d, fmt.Sprintf("%s-%s-%s", p.Name, name, d)
			all = append(all, q)
		}
	}
	return all
}

// verbs is the methods that Limiter and Tx share.
type verbs interface {
	AllowN(context.Context, limiter.Policy, string, float64) (limiter.Result, error)
	AllowUpTo(context.Context, limiter.Policy, string, float64) (limiter.Result, error)
	Charge(context.Context, limiter.Policy, string, float64) (limiter.Result, error)
	Refund(context.Context, limiter.Policy, string, float64) (limiter.Result, error)
	Reset(context.Context, limiter.Policy, string) error
	Block(context.Context, limiter.Policy, string, time.Duration) error
	Unblock(context.Context, limiter.Policy, string) error
}

// everyVerb runs every verb that writes, each on a separate key, and calls after after
// each. It returns the number of changes per key.
func everyVerb(t *testing.T, v verbs, p limiter.Policy, after func()) (changes map[string]int) {
	t.Helper()
	ctx := t.Context()
	changes = map[string]int{}
	change := func(key string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %s: %v", p.Name, key, err)
		}
		changes[key]++
		after()
	}
	answered := func(_ limiter.Result, err error) error { return err }
	change("allow", answered(v.AllowN(ctx, p, "allow", 2)))
	change("upto", answered(v.AllowUpTo(ctx, p, "upto", 2)))
	change("charge", answered(v.Charge(ctx, p, "charge", 2)))
	change("deny", answered(v.Charge(ctx, p, "deny", p.Limit)))
	change("deny", answered(v.AllowN(ctx, p, "deny", p.Limit)))
	if p.Algorithm != limiter.LeakyBucketQueue {
		change("refund", answered(v.Charge(ctx, p, "refund", 2)))
		change("refund", answered(v.Refund(ctx, p, "refund", 1)))
	}
	change("block", v.Block(ctx, p, "block", time.Hour))
	change("unblock", v.Block(ctx, p, "unblock", time.Hour))
	change("unblock", v.Unblock(ctx, p, "unblock"))
	change("reset", answered(v.Charge(ctx, p, "reset", 2)))
	change("reset", v.Reset(ctx, p, "reset"))
	return changes
}

// TestDurabilityOfLoneStatements: each statement of each algorithm commits as the policy
// requires, and leaves the session's setting unchanged.
func TestDurabilityOfLoneStatements(t *testing.T) {
	t.Parallel()
	c := testworld.NewCommitLog(t)
	for _, session := range commitSettings {
		t.Run(session, func(t *testing.T) {
			t.Parallel()
			pool := testworld.Connect(t, c.URL, testworld.OneConnection, testworld.Setting("synchronous_commit", session))
			l := testworld.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
			for _, p := range policies(session) {
				changes := everyVerb(t, l, p, func() {
					if now := testworld.Value[string](t, pool, "SHOW synchronous_commit"); now != session {
						t.Errorf("%s: the session was left with %s", p.Name, now)
					}
				})
				if p.Algorithm == limiter.LeakyBucketQueue {
					waitInVain(t, l, p, "wait")
					changes["wait"] = 3
				}
				c.Expect(t, p, testworld.CommittedWith(session, p.Durability), changes)
			}
		})
	}
}

// waitInVain makes three changes: a place that is free at once, one to wait for, and its
// return.
func waitInVain(t *testing.T, l *limiter.Limiter, p limiter.Policy, key string) {
	t.Helper()
	must.Succeed(t, l.Wait(t.Context(), p, key, 1))
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { gone <- l.Wait(ctx, p, key, 1) }()
	queued := func(units float64) {
		t.Helper()
		testworld.Eventually(t, fmt.Sprint(units, " units are in the queue"), func(ctx context.Context) (bool, error) {
			r, err := l.Check(ctx, p, key, 0)
			return testworld.Near(r.Level, units), err
		})
	}
	queued(2)
	cancel()
	if err := <-gone; err == nil {
		t.Errorf("%s: a cancelled Wait had its turn", p.Name)
	}
	queued(1)
}

// TestDurabilityOfBatches sends requests of both durabilities in turns while a statement is
// in flight: those of one share a transaction, which commits as they require, and none has
// requests of both.
func TestDurabilityOfBatches(t *testing.T) {
	t.Parallel()
	for _, session := range commitSettings {
		t.Run(session, func(t *testing.T) {
			t.Parallel()
			// Its own tables: while another test extends one, a batch may wait for that
			// lock until it is sent again, row by row.
			c := testworld.NewCommitLog(t)
			g := testworld.NewGate(t, c.URL, limiter.Config{}, testworld.OneConnection, testworld.Setting("synchronous_commit", session))
			all := policies("batch")
			for i := 0; i < len(all); i += 2 { // both durabilities of a variant
				for verb, ask := range map[string]func(context.Context, limiter.Policy, string, float64) (limiter.Result, error){"allow": g.AllowN, "charge": g.Charge} {
					g.Shut()
					first := g.Queue(t.Context(), limiter.Policy{Name: "first", Algorithm: limiter.TokenBucket, Limit: 1e6, Period: time.Hour}.Request("first", 1))
					answers := []<-chan testworld.Answer{first}
					for n := range 3 {
						for _, p := range all[i : i+2] {
							p.Name += "-" + verb
							answers = append(answers, g.Send(func() (limiter.Result, error) { return ask(t.Context(), p, fmt.Sprint(n), 1) }))
						}
					}
					g.Reopen()
					for _, a := range answers {
						if got := <-a; got.Err != nil || !got.Allowed {
							t.Errorf("%s: %+v, %v", all[i].Name, got.Result, got.Err)
						}
					}
					for _, p := range all[i : i+2] {
						p.Name += "-" + verb
						c.Expect(t, p, testworld.CommittedWith(session, p.Durability), map[string]int{"0": 1, "1": 1, "2": 1})
						if n := testworld.Value[int64](t, c.Pool, `SELECT count(DISTINCT xid) FROM committed WHERE policy = $1`, p.Name); n > 2 { // the first may be alone
							t.Errorf("%s: three requests made %d transactions", p.Name, n)
						}
					}
				}
			}
			if n := testworld.Value[int64](t, c.Pool, `SELECT count(*) FROM (SELECT FROM committed GROUP BY xid HAVING count(DISTINCT setting) > 1 OR count(DISTINCT policy) > 1) AS mixed`); n != 0 {
				t.Errorf("%d transactions have requests of both durabilities", n)
			}
		})
	}
}

// TestDurabilityInTx: in the caller's transaction the caller's setting applies, for
// policies of either durability.
func TestDurabilityInTx(t *testing.T) {
	t.Parallel()
	c := testworld.NewCommitLog(t)
	l := testworld.NewLimiter(t, c.Pool, nil)
	for _, callers := range commitSettings {
		for _, p := range policies(callers) {
			tx := testworld.Begin(t, c.Pool, pgx.TxOptions{})
			must.OK(tx.Exec(t.Context(), "SET LOCAL synchronous_commit = "+callers))(t)
			changes := everyVerb(t, l.InTx(tx), p, func() {})
			testworld.Commit(t, tx)
			c.Expect(t, p, callers, changes)
		}
	}
}

// TestDurabilityUnderStricterIsolation: once the limiter opens its own transactions, they
// commit as the policy requires.
func TestDurabilityUnderStricterIsolation(t *testing.T) {
	t.Parallel()
	c := testworld.NewCommitLog(t)
	pool := testworld.Connect(t, c.URL, testworld.Setting("synchronous_commit", "off"), testworld.Setting("default_transaction_isolation", "repeatable read"))
	l := testworld.NewLimiter(t, pool, &limiter.Config{DisableBatching: true, DisableDenyCache: true})
	p := limiter.Policy{Name: "conflict", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	c.MeetConflict(t, l, p)
	for _, p := range policies("own") {
		c.Expect(t, p, testworld.CommittedWith("off", p.Durability), everyVerb(t, l, p, func() {}))
	}
	if n := testworld.Value[int64](t, c.Pool, `SELECT count(*) FROM committed WHERE policy <> 'conflict' AND isolation <> 'read committed'`); n != 0 {
		t.Errorf("%d changes were not made in a transaction of the limiter's own", n)
	}
}
