package crash

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// The values of synchronous_commit.
var commitSettings = []string{"off", "on", "local", "remote_write", "remote_apply"}

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
	c := bed.NewCommitLog(t)
	for _, session := range commitSettings {
		t.Run(session, func(t *testing.T) {
			t.Parallel()
			pool := bed.Connect(t, c.URL, bed.OneConnection, bed.Setting("synchronous_commit", session))
			l := bed.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
			for _, base := range bed.Variants(10, 1000*time.Hour) {
				for _, d := range bed.Durabilities {
					p := base
					p.Durability, p.Name = d, fmt.Sprintf("%s-%s-%s", base.Name, session, d)
					changes := everyVerb(t, l, p, func() {
						if now := bed.Value[string](t, pool, "SHOW synchronous_commit"); now != session {
							t.Errorf("%s: the session was left with %s", p.Name, now)
						}
					})
					if p.Algorithm == limiter.LeakyBucketQueue {
						waitInVain(t, l, p, "wait")
						changes["wait"] = 3
					}
					c.Expect(t, p, bed.CommittedWith(session, d), changes)
				}
			}
		})
	}
}

// waitInVain makes three changes: a place that is free at once, one to wait for, and its
// return.
func waitInVain(t *testing.T, l *limiter.Limiter, p limiter.Policy, key string) {
	t.Helper()
	if err := l.Wait(t.Context(), p, key, 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { gone <- l.Wait(ctx, p, key, 1) }()
	queued := func(units float64) {
		t.Helper()
		bed.Eventually(t, fmt.Sprint(units, " units are in the queue"), func(ctx context.Context) (bool, error) {
			r, err := l.Check(ctx, p, key, 0)
			return bed.Near(r.Level, units), err
		})
	}
	queued(2)
	cancel()
	if err := <-gone; err == nil {
		t.Errorf("%s: a cancelled Wait had its turn", p.Name)
	}
	queued(1)
}

// TestDurabilityOfBatches is the same for requests that share a statement: of three, the
// first is alone and the other two share one.
func TestDurabilityOfBatches(t *testing.T) {
	t.Parallel()
	for _, session := range commitSettings {
		t.Run(session, func(t *testing.T) {
			t.Parallel()
			// Its own tables: while another test extends one, a batch may wait for that
			// lock until it is sent again, row by row.
			c := bed.NewCommitLog(t)
			g := &bed.Doorway{Arrived: make(chan struct{})}
			pool := bed.Connect(t, c.URL, g.Guard, bed.OneConnection, bed.Setting("synchronous_commit", session))
			g.Limiter = bed.NewGated(t, pool, limiter.Config{})
			for _, base := range bed.Variants(10, 1000*time.Hour) {
				for _, d := range bed.Durabilities {
					p := base
					p.Durability, p.Name = d, fmt.Sprintf("%s-%s-%s", base.Name, session, d)
					g.Shut()
					var answers []<-chan bed.Answer
					for _, key := range []string{"first", "second", "third"} {
						answers = append(answers, g.Queue(t.Context(), p.Request(key, 1)))
					}
					g.Reopen()
					for _, a := range answers {
						if got := <-a; got.Err != nil || !got.Allowed {
							t.Errorf("%s: %+v, %v", p.Name, got.Result, got.Err)
						}
					}
					c.Expect(t, p, bed.CommittedWith(session, d), map[string]int{"first": 1, "second": 1, "third": 1})
					if n := bed.Value[int64](t, c.Pool, `SELECT count(DISTINCT xid) FROM committed WHERE policy = $1`, p.Name); n != 2 {
						t.Errorf("%s: three requests made %d transactions, not 2", p.Name, n)
					}
					if now := bed.Value[string](t, pool, "SHOW synchronous_commit"); now != session {
						t.Errorf("%s: the session was left with %s", p.Name, now)
					}
				}
			}
		})
	}
}

// TestDurabilityOfBatchesStaysApart sends requests of both durabilities in turns while a
// statement of each is in flight: no transaction has rows of both.
func TestDurabilityOfBatchesStaysApart(t *testing.T) {
	t.Parallel()
	c := bed.NewCommitLog(t)
	ctx := t.Context()
	for _, base := range bed.Variants(10, 1000*time.Hour) {
		g := &bed.Doorway{Arrived: make(chan struct{})} // no statement of the last round is in flight in it
		g.Limiter = bed.NewGated(t, bed.Connect(t, c.URL, g.Guard, bed.Setting("synchronous_commit", "off")), limiter.Config{})
		durable, relaxed := base, base
		durable.Name, relaxed.Name = base.Name+"-durable", base.Name+"-relaxed"
		relaxed.Durability = limiter.Relaxed
		g.Shut()
		answers := []<-chan bed.Answer{g.Queue(ctx, durable.Request("first", 1))}
		first := make(chan bed.Answer, 1)
		go func() {
			r, err := g.Do(ctx, relaxed.Request("first", 1))
			first <- bed.Answer{Result: r, Err: err}
		}()
		<-g.Arrived // the relaxed request's own statement, which waits for no durable one
		g.Asked++
		answers = append(answers, first)
		for i := range 4 {
			answers = append(answers, g.Queue(ctx, durable.Request(fmt.Sprint(i), 1)), g.Queue(ctx, relaxed.Request(fmt.Sprint(i), 1)))
		}
		g.Reopen()
		for _, a := range answers {
			if got := <-a; got.Err != nil || !got.Allowed {
				t.Errorf("%s: %+v, %v", bed.Variant(base), got.Result, got.Err)
			}
		}
		got := bed.Value[string](t, c.Pool, `SELECT string_agg(what, ', ' ORDER BY what) FROM (
			SELECT string_agg(DISTINCT policy || ' ' || setting, ' and ') || ' x ' || count(*) AS what
			FROM committed WHERE policy IN ($1, $2) GROUP BY xid) AS transactions`, durable.Name, relaxed.Name)
		want := fmt.Sprintf("%[1]s on x 1, %[1]s on x 4, %[2]s off x 1, %[2]s off x 4", durable.Name, relaxed.Name)
		if got != want {
			t.Errorf("%s: the transactions are\n%s, want\n%s", bed.Variant(base), got, want)
		}
	}
}

// TestDurabilityInTx: in the caller's transaction the caller's setting applies, for
// policies of either durability.
func TestDurabilityInTx(t *testing.T) {
	t.Parallel()
	c := bed.NewCommitLog(t)
	l := bed.NewLimiter(t, c.Pool, nil)
	for _, callers := range commitSettings {
		for _, base := range bed.Variants(10, 1000*time.Hour) {
			for _, d := range bed.Durabilities {
				p := base
				p.Durability, p.Name = d, fmt.Sprintf("%s-%s-%s", base.Name, callers, d)
				tx := bed.Begin(t, c.Pool, pgx.TxOptions{})
				if _, err := tx.Exec(t.Context(), "SET LOCAL synchronous_commit = "+callers); err != nil {
					t.Fatal(err)
				}
				changes := everyVerb(t, l.InTx(tx), p, func() {
					var now string
					if err := tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&now); err != nil || now != callers {
						t.Errorf("%s: the transaction was left with %s, %v", p.Name, now, err)
					}
				})
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				c.Expect(t, p, callers, changes)
			}
		}
	}
}

// TestDurabilityUnderStricterIsolation: once the limiter opens its own transactions, they
// commit as the policy requires.
func TestDurabilityUnderStricterIsolation(t *testing.T) {
	t.Parallel()
	c := bed.NewCommitLog(t)
	pool := bed.Connect(t, c.URL, bed.Setting("synchronous_commit", "off"), bed.Setting("default_transaction_isolation", "repeatable read"))
	l := bed.NewLimiter(t, pool, &limiter.Config{DisableBatching: true, DisableDenyCache: true})
	p := limiter.Policy{Name: "conflict", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	c.MeetConflict(t, l, p)
	for _, base := range bed.Variants(10, 1000*time.Hour) {
		for _, d := range bed.Durabilities {
			p := base
			p.Durability, p.Name = d, fmt.Sprintf("%s-%s", base.Name, d)
			c.Expect(t, p, bed.CommittedWith("off", d), everyVerb(t, l, p, func() {}))
		}
	}
	if n := bed.Value[int64](t, c.Pool, `SELECT count(*) FROM committed WHERE policy <> 'conflict' AND isolation <> 'read committed'`); n != 0 {
		t.Errorf("%d changes were not made in a transaction of the limiter's own", n)
	}
}
