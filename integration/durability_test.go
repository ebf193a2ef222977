package integration

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// What synchronous_commit can be.
var commitSettings = []string{"off", "on", "local", "remote_write", "remote_apply"}

var durabilities = []limiter.Durability{limiter.Durable, limiter.Relaxed}

// committedWith is how a statement of its own has to commit: Relaxed without
// waiting; Durable as the session does, which waits at least for the disk.
func committedWith(session string, d limiter.Durability) string {
	switch {
	case d == limiter.Relaxed:
		return "off"
	case session == "off":
		return "on"
	}
	return session
}

// commitLog is a database that notes, for each change of a row, how the
// transaction was committed: a deferred trigger runs when it commits.
type commitLog struct {
	url  string
	pool *pgxpool.Pool
}

func newCommitLog(t *testing.T) *commitLog {
	t.Helper()
	c := &commitLog{url: newDatabase(t)}
	c.pool = connect(t, c.url)
	exec(t, c.pool, `CREATE TABLE committed (xid bigint, policy text, key text, setting text, isolation text)`)
	exec(t, c.pool, `CREATE FUNCTION committed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO committed VALUES (txid_current(), coalesce(NEW.policy, OLD.policy), coalesce(NEW.key, OLD.key),
			current_setting('synchronous_commit'), current_setting('transaction_isolation'));
		RETURN NULL;
	END $$`)
	for _, a := range limiter.Algorithms() {
		exec(t, c.pool, `CREATE CONSTRAINT TRIGGER committed AFTER INSERT OR UPDATE OR DELETE ON pglimit_`+string(a)+`
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION committed()`)
	}
	return c
}

// expect compares what was noted for a policy: each change of each key, all
// committed with that setting.
func (c *commitLog) expect(t *testing.T, p limiter.Policy, setting string, changes map[string]int) {
	t.Helper()
	want := map[string]string{}
	for key, n := range changes {
		want[key] = strings.TrimSpace(strings.Repeat(setting+" ", n))
	}
	got := map[string]string{}
	rows, err := c.pool.Query(t.Context(), `SELECT key, string_agg(setting, ' ') FROM committed WHERE policy = $1 GROUP BY key`, p.Name)
	if err != nil {
		t.Fatal(err)
	}
	var key, settings string
	if _, err := pgx.ForEachRow(rows, []any{&key, &settings}, func() error { got[key] = settings; return nil }); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s: committed with %v, want %v", p.Name, got, want)
	}
}

// verbs is what a Limiter and a Tx have in common.
type verbs interface {
	AllowN(context.Context, limiter.Policy, string, float64) (limiter.Result, error)
	AllowUpTo(context.Context, limiter.Policy, string, float64) (limiter.Result, error)
	Fill(context.Context, limiter.Policy, string, float64) (limiter.Result, error)
	Refund(context.Context, limiter.Policy, string, float64) (limiter.Result, error)
	Reset(context.Context, limiter.Policy, string) error
	Block(context.Context, limiter.Policy, string, time.Duration) error
	Unblock(context.Context, limiter.Policy, string) error
}

// everyVerb runs every verb that writes, on keys of their own, and after each
// what the caller wants to see. It returns how many changes each key has had.
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
	change("fill", answered(v.Fill(ctx, p, "fill", 2)))
	change("deny", answered(v.Fill(ctx, p, "deny", p.Limit)))
	change("deny", answered(v.AllowN(ctx, p, "deny", p.Limit)))
	if p.Algorithm != limiter.LeakyBucketQueue {
		change("refund", answered(v.Fill(ctx, p, "refund", 2)))
		change("refund", answered(v.Refund(ctx, p, "refund", 1)))
	}
	change("block", v.Block(ctx, p, "block", time.Hour))
	change("unblock", v.Block(ctx, p, "unblock", time.Hour))
	change("unblock", v.Unblock(ctx, p, "unblock"))
	change("reset", answered(v.Fill(ctx, p, "reset", 2)))
	change("reset", v.Reset(ctx, p, "reset"))
	return changes
}

// single gives a pool one connection, so that its session can be looked at.
func single(cfg *pgxpool.Config) { cfg.MaxConns = 1 }

// TestDurabilityOfLoneStatements: each statement of each algorithm commits as
// the policy says, and the session has its own setting back after it.
func TestDurabilityOfLoneStatements(t *testing.T) {
	t.Parallel()
	c := newCommitLog(t)
	for _, session := range commitSettings {
		t.Run(session, func(t *testing.T) {
			t.Parallel()
			pool := connect(t, c.url, single, setting("synchronous_commit", session))
			l := newLimiter(t, pool, &limiter.Config{DenyCacheTTL: -1})
			for _, base := range variants(10, 1000*time.Hour) {
				for _, d := range durabilities {
					p := base
					p.Durability, p.Name = d, fmt.Sprintf("%s-%s-%s", base.Name, session, d)
					changes := everyVerb(t, l, p, func() {
						if now := one[string](t, pool, "SHOW synchronous_commit"); now != session {
							t.Errorf("%s: the session was left with %s", p.Name, now)
						}
					})
					if p.Algorithm == limiter.LeakyBucketQueue {
						waitInVain(t, l, p, "wait")
						changes["wait"] = 3
					}
					c.expect(t, p, committedWith(session, d), changes)
				}
			}
		})
	}
}

// waitInVain makes three changes: a place that is free at once, one to wait
// for, and that one given back.
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
		eventually(t, fmt.Sprint(units, " units are in the queue"), func(ctx context.Context) (bool, error) {
			r, err := l.Check(ctx, p, key, 0)
			return near(r.Level, units), err
		})
	}
	queued(2)
	cancel()
	if err := <-gone; err == nil {
		t.Errorf("%s: a cancelled Wait had its turn", p.Name)
	}
	queued(1)
}

// TestDurabilityOfBatches is the same for those that share a statement: of three
// asks the first is alone, and the two that come meanwhile are together.
func TestDurabilityOfBatches(t *testing.T) {
	t.Parallel()
	c := newCommitLog(t)
	for _, session := range commitSettings {
		t.Run(session, func(t *testing.T) {
			t.Parallel()
			g := &doorway{arrived: make(chan struct{})}
			pool := connect(t, c.url, g.guard, single, setting("synchronous_commit", session))
			g.Limiter = newGated(t, pool, limiter.Config{})
			for _, base := range variants(10, 1000*time.Hour) {
				for _, d := range durabilities {
					p := base
					p.Durability, p.Name = d, fmt.Sprintf("%s-%s-%s", base.Name, session, d)
					g.close()
					var answers []<-chan answer
					for _, key := range []string{"first", "second", "third"} {
						answers = append(answers, g.ask(t.Context(), p.Ask(key, 1)))
					}
					g.open()
					for _, a := range answers {
						if got := <-a; got.err != nil || !got.Allowed {
							t.Errorf("%s: %+v, %v", p.Name, got.Result, got.err)
						}
					}
					c.expect(t, p, committedWith(session, d), map[string]int{"first": 1, "second": 1, "third": 1})
					if n := one[int64](t, c.pool, `SELECT count(DISTINCT xid) FROM committed WHERE policy = $1`, p.Name); n != 2 {
						t.Errorf("%s: three asks made %d transactions, not 2", p.Name, n)
					}
					if now := one[string](t, pool, "SHOW synchronous_commit"); now != session {
						t.Errorf("%s: the session was left with %s", p.Name, now)
					}
				}
			}
		})
	}
}

// TestBatchesKeepDurabilitiesApart lets asks of both come in turns while a
// statement of each is in flight: no transaction has rows of both.
func TestBatchesKeepDurabilitiesApart(t *testing.T) {
	t.Parallel()
	c := newCommitLog(t)
	ctx := t.Context()
	for _, base := range variants(10, 1000*time.Hour) {
		g := &doorway{arrived: make(chan struct{})} // nothing of the last one is in flight in it
		g.Limiter = newGated(t, connect(t, c.url, g.guard, setting("synchronous_commit", "off")), limiter.Config{})
		durable, relaxed := base, base
		durable.Name, relaxed.Name = base.Name+"-durable", base.Name+"-relaxed"
		relaxed.Durability = limiter.Relaxed
		g.close()
		answers := []<-chan answer{g.ask(ctx, durable.Ask("first", 1))}
		first := make(chan answer, 1)
		go func() {
			r, err := g.Do(ctx, relaxed.Ask("first", 1))
			first <- answer{r, err}
		}()
		for arrived := false; !arrived; runtime.Gosched() {
			select {
			case <-g.arrived: // the relaxed ask's own statement
				arrived = true
			default:
				if g.Waiting() > 0 {
					g.open()
					t.Fatalf("%s: a relaxed ask waits for a durable statement", variant(base))
				}
			}
		}
		answers = append(answers, first)
		for i := range 4 {
			answers = append(answers, g.ask(ctx, durable.Ask(fmt.Sprint(i), 1)), g.ask(ctx, relaxed.Ask(fmt.Sprint(i), 1)))
		}
		g.open()
		for _, a := range answers {
			if got := <-a; got.err != nil || !got.Allowed {
				t.Errorf("%s: %+v, %v", variant(base), got.Result, got.err)
			}
		}
		got := one[string](t, c.pool, `SELECT string_agg(what, ', ' ORDER BY what) FROM (
			SELECT string_agg(DISTINCT policy || ' ' || setting, ' and ') || ' x ' || count(*) AS what
			FROM committed WHERE policy IN ($1, $2) GROUP BY xid) AS transactions`, durable.Name, relaxed.Name)
		want := fmt.Sprintf("%[1]s on x 1, %[1]s on x 4, %[2]s off x 1, %[2]s off x 4", durable.Name, relaxed.Name)
		if got != want {
			t.Errorf("%s: the transactions are\n%s, want\n%s", variant(base), got, want)
		}
	}
}

// TestDurabilityInTx: in the caller's transaction the caller's setting holds,
// for policies of either durability.
func TestDurabilityInTx(t *testing.T) {
	t.Parallel()
	c := newCommitLog(t)
	l := newLimiter(t, c.pool, nil)
	for _, callers := range commitSettings {
		for _, base := range variants(10, 1000*time.Hour) {
			for _, d := range durabilities {
				p := base
				p.Durability, p.Name = d, fmt.Sprintf("%s-%s-%s", base.Name, callers, d)
				tx := begin(t, c.pool, pgx.TxOptions{})
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
				c.expect(t, p, callers, changes)
			}
		}
	}
}

// TestDurabilityUnderStricterIsolation: once the limiter opens transactions of
// its own, they commit as the policy says.
func TestDurabilityUnderStricterIsolation(t *testing.T) {
	t.Parallel()
	c := newCommitLog(t)
	pool := connect(t, c.url, setting("synchronous_commit", "off"), setting("default_transaction_isolation", "repeatable read"))
	l := newLimiter(t, pool, &limiter.Config{BatchRows: -1, DenyCacheTTL: -1})
	p := limiter.Policy{Name: "conflict", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	must(t)(l.Allow(t.Context(), p, "k"))
	tx := begin(t, c.pool, pgx.TxOptions{})
	must(t)(l.InTx(tx).Allow(t.Context(), p, "k"))
	late := make(chan error, 1)
	go func() {
		_, err := l.Allow(t.Context(), p, "k")
		late <- err
	}()
	eventually(t, "the ask waits for the row", func(ctx context.Context) (bool, error) {
		n, err := blocked(ctx, c.pool)
		return n == 1, err
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-late; err != nil {
		t.Fatal(err)
	}
	for _, base := range variants(10, 1000*time.Hour) {
		for _, d := range durabilities {
			p := base
			p.Durability, p.Name = d, fmt.Sprintf("%s-%s", base.Name, d)
			c.expect(t, p, committedWith("off", d), everyVerb(t, l, p, func() {}))
		}
	}
	if n := one[int64](t, c.pool, `SELECT count(*) FROM committed WHERE policy <> 'conflict' AND isolation <> 'read committed'`); n != 0 {
		t.Errorf("%d changes were not made in a transaction of the limiter's own", n)
	}
}

// TestCommandDurability: the flag reaches what is committed, and Durable is the
// default, on a database whose own setting would not wait.
func TestCommandDurability(t *testing.T) {
	t.Parallel()
	c := newCommitLog(t)
	exec(t, c.pool, "ALTER DATABASE "+one[string](t, c.pool, "SELECT current_database()")+" SET synchronous_commit = off")
	for flags, want := range map[string]string{"": "on", " --durability durable": "on", " --durability relaxed": "off"} {
		p := limiter.Policy{Name: "cli" + strings.ReplaceAll(flags, " ", "-")}
		for _, line := range []string{"allow allow", "fill fill", "refund fill", "check check", "wait --algorithm leaky_bucket_queue wait"} {
			if code, _, stderr := pglimit(t, c.url, strings.Fields(line+flags+" --limit 10 --period 1000h --name "+p.Name)...); code != 0 {
				t.Errorf("%s%s: exit code %d, %s", line, flags, code, stderr)
			}
		}
		c.expect(t, p, want, map[string]int{"allow": 1, "fill": 2, "wait": 1})
	}
}
