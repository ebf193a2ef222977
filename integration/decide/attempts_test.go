package decide

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// attempts is the base of histories of attempts.
var attempts = limiter.Policy{Name: "attempts", Algorithm: limiter.Attempts, Limit: 1, Period: 10 * time.Second, BlockFor: time.Second}

// TestAttemptsAsMemory: over each driver, and in the caller's transaction and its savepoints,
// attempts are decided as by a limiter in memory, to the microsecond, with clocks that are set
// back and a janitor that sweeps.
func TestAttemptsAsMemory(t *testing.T) {
	t.Parallel()
	searchAsMemory(t, search.Draw{Equal: true, Retries: true, Operations: search.Attempts}, attempts)
}

// begin begins an attempt that is to be allowed, and returns its ID.
func begin(t *testing.T, d interface {
	Attempt(ctx context.Context, p limiter.Policy, key string, o limiter.AttemptOptions) (limiter.Ticket, error)
}, p limiter.Policy, key, from string) string {
	t.Helper()
	ticket, err := d.Attempt(t.Context(), p, key, limiter.AttemptOptions{From: from, TTL: time.Hour})
	if err != nil || !ticket.Result.Allowed {
		t.Fatalf("got %+v, %v", ticket, err)
	}
	return ticket.ID
}

// TestAttemptsAtOnce: of 64 callers at once, of all drivers, exactly Burst have an attempt of a key
// under way. Where an attempt was rolled back, others may begin. Each failure counts once, although
// two callers report it.
func TestAttemptsAtOnce(t *testing.T) {
	t.Parallel()
	url := testworld.NewDatabase(t)
	var all []*limiter.Limiter
	for _, open := range testworld.Drivers(t, url) {
		all = append(all, open(nil), open(nil))
	}
	pool := testworld.Connect(t, url)
	for round := range 24 {
		p := attempts
		p.Name, p.Burst, p.Period, p.BlockFor = fmt.Sprint("round-", round), float64(1+round%3), time.Hour, time.Minute
		p.Limit = p.Burst + 1 // so that no failure makes it wait
		if round%2 == 0 {
			tx := must.OK(pool.Begin(t.Context()))(t)
			begin(t, all[0].InTx(tx), p, "k", "")
			must.Succeed(t, tx.Rollback(t.Context()))
		}
		var mu sync.Mutex
		var ids []string
		var working sync.WaitGroup
		start := make(chan struct{})
		for i := range 64 {
			working.Go(func() {
				<-start
				ticket, err := all[i%len(all)].Attempt(t.Context(), p, "k", limiter.AttemptOptions{From: fmt.Sprint(i), TTL: time.Hour})
				if err != nil || !ticket.Result.Allowed && ticket.Result.Reason != limiter.ReasonLimit {
					t.Errorf("got %+v, %v", ticket, err)
				}
				if ticket.Result.Allowed {
					mu.Lock()
					defer mu.Unlock()
					ids = append(ids, ticket.ID)
				}
			})
		}
		close(start)
		working.Wait()
		if len(ids) != int(p.Burst) {
			t.Fatalf("round %d: %d attempts are under way, want %v", round, len(ids), p.Burst)
		}
		var counted, again atomic.Int64
		for i, l := range all {
			for _, id := range ids {
				working.Go(func() {
					if _, err := all[(i+1)%len(all)].Failed(t.Context(), id); err == nil {
						counted.Add(1)
					} else if errors.Is(err, limiter.ErrNoTicket) {
						again.Add(1)
					} else {
						t.Errorf("%v of %v", err, l)
					}
				})
			}
		}
		working.Wait()
		u := must.OK(all[0].Usage(t.Context(), p, "k"))(t)
		if counted.Load() != int64(len(ids)) || u.Spent != p.Burst || u.Reservations != 0 {
			t.Fatalf("round %d: %d reports counted and %d not: %+v", round, counted.Load(), again.Load(), u)
		}
	}
}

// TestLoginInTx: a login record and the report of its attempt are committed or rolled back together, in
// each way to use limits in a transaction.
func TestLoginInTx(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	testworld.Exec(t, pool, "CREATE TABLE logins (name text)")
	for i, w := range testworld.Ways(t, address, false) {
		p := attempts
		p.Name, p.Period = fmt.Sprint("way-", i), time.Hour
		id := begin(t, w.L, p, "alice", "home")
		for _, commits := range []bool{false, true} {
			tx := w.Start(t, "INSERT INTO logins VALUES ('"+p.Name+"')")
			must.Succeed(t, tx.Succeeded(t.Context(), id))
			tx.End(t, commits)
			u := must.OK(w.L.Usage(t.Context(), p, "alice"))(t)
			n := testworld.Value[int](t, pool, "SELECT count(*) FROM logins WHERE name = '"+p.Name+"'")
			if commits != (u.Reservations == 0) || commits != (n == 1) {
				t.Errorf("%s: committed %v: %+v, %d logins", w.Name, commits, u, n)
			}
		}
		tx := w.Start(t)
		if err := tx.Succeeded(t.Context(), id); !errors.Is(err, limiter.ErrNoTicket) {
			t.Errorf("%s: another report: %v", w.Name, err)
		}
		other := begin(t, tx, p, "alice", "afar") // the transaction is intact
		if r, err := tx.Failed(t.Context(), other); err != nil || r.Level != 1 || r.RetryAfter == 0 {
			t.Errorf("%s: got %+v, %v", w.Name, r, err)
		}
		tx.End(t, true)
		begin(t, w.L, p, "alice", "home") // which is known
	}
}

// TestAttemptRowsGo: the janitor deletes a row when nothing in it counts any longer, and not before.
func TestAttemptRowsGo(t *testing.T) {
	t.Parallel()
	pool, clock := testworld.NewPool(t), new(conformance.Clock)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: clock.Now})
	j := testworld.NewJanitor(t, pool, &janitor.Config{Now: clock.Now})
	p := attempts
	p.Period = time.Hour
	sweep := func(after time.Duration, want int) {
		t.Helper()
		clock.Set(after.Microseconds())
		must.OK(j.Sweep(t.Context()))(t)
		if n := testworld.Value[int](t, pool, "SELECT count(*) FROM pglimit_attempt"); n != want {
			t.Fatalf("%d rows after %v, want %d", n, after, want)
		}
	}
	must.Succeed(t, l.Succeeded(t.Context(), begin(t, l, p, "alice", "home")))
	begin(t, l, p, "bob", "") // it ends after an hour, and then counts for a second and an hour
	const day = 24 * time.Hour
	sweep(2*time.Hour, 3)
	sweep(3*time.Hour+2*time.Minute, 1)
	sweep(6*time.Hour, 1)
	must.Succeed(t, l.Succeeded(t.Context(), begin(t, l, p, "alice", "home")))
	sweep(90*day+2*time.Hour, 1)
	sweep(90*day+9*time.Hour, 0)
}

// TestWaitsDoNotShrink: neither a ticket that ends under a plan with shorter waits, nor a success of
// another source, makes a wait shorter.
func TestWaitsDoNotShrink(t *testing.T) {
	t.Parallel()
	pool, clock := testworld.NewPool(t), new(conformance.Clock)
	config := &limiter.Config{Now: clock.Now}
	for name, l := range map[string]*limiter.Limiter{"memory": limiter.NewMemory(config), "database": testworld.NewLimiter(t, pool, config)} {
		clock.Set(0)
		long := attempts
		long.Burst, long.BlockFor, long.Period = 3, time.Hour, time.Hour
		short := long
		short.BlockFor, short.BlockMax = time.Millisecond, time.Millisecond
		must.Succeed(t, l.Succeeded(t.Context(), begin(t, l, long, "k", "home")))
		first := begin(t, l, long, "k", "afar")
		must.OK(l.Attempt(t.Context(), long, "k", limiter.AttemptOptions{TTL: time.Second}))(t)
		if r, err := l.Failed(t.Context(), first); err != nil || r.RetryAfter != time.Hour {
			t.Fatalf("%s: got %+v, %v", name, r, err)
		}
		clock.Set(2_000_000)
		must.Succeed(t, l.Succeeded(t.Context(), begin(t, l, short, "k", "home")))
		ticket, err := l.Attempt(t.Context(), short, "k", limiter.AttemptOptions{})
		if r := ticket.Result; err != nil || r.Allowed || r.RetryAfter != time.Hour-2*time.Second || r.Level != 2 {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
	}
}

// TestBlockMovesNoClock: a Block leaves a row's clock as it was, also if it makes the row. So an attempt
// by a clock that is behind is decided at its own time, whether an Unblock or a Reset came first or not.
func TestBlockMovesNoClock(t *testing.T) {
	t.Parallel()
	pool, clock := testworld.NewPool(t), new(conformance.Clock)
	config := &limiter.Config{Now: clock.Now}
	for name, l := range map[string]*limiter.Limiter{"memory": limiter.NewMemory(config), "database": testworld.NewLimiter(t, pool, config)} {
		for key, first := range map[string]func(context.Context, limiter.Policy, string) error{
			"new": nil, "unblocked": l.Unblock, "reset": l.Reset,
		} {
			clock.Set(9_000_000)
			if first != nil {
				must.Succeed(t, first(t.Context(), attempts, key))
			}
			must.Succeed(t, l.Block(t.Context(), attempts, key, time.Minute))
			clock.Set(1_000_000)
			must.Succeed(t, l.Block(t.Context(), attempts, key, 2*time.Minute))
			denied, err := l.Check(t.Context(), attempts, key, 1)
			if err != nil || denied.Allowed || denied.RetryAfter != 2*time.Minute {
				t.Errorf("%s, %s: a later block by a clock that is behind: got %+v, %v", name, key, denied, err)
			}
			must.Succeed(t, l.Unblock(t.Context(), attempts, key))
			ticket, err := l.Attempt(t.Context(), attempts, key, limiter.AttemptOptions{TTL: time.Hour})
			if left := ticket.ExpiresAt.Sub(clock.Now()); err != nil || left != time.Hour {
				t.Errorf("%s, %s: the ticket ends in %v, %v", name, key, left, err)
			}
		}
	}
}

// overAll returns a limiter in memory and one over each driver.
func overAll(t *testing.T, address string, config *limiter.Config) map[string]*limiter.Limiter {
	all := map[string]*limiter.Limiter{"memory": limiter.NewMemory(config)}
	for name, open := range testworld.Drivers(t, address) {
		all[name] = open(config)
	}
	return all
}

// TestForgedTickets: an ID made of the text of a place, or of the end of a ticket, is none. Its
// report changes nothing, and the error has no ID of another attempt.
func TestForgedTickets(t *testing.T) {
	t.Parallel()
	for name, l := range overAll(t, testworld.NewDatabase(t), nil) {
		p := attempts
		p.Name, p.Burst, p.Period = strings.NewReplacer("/", "-", " ", "-").Replace(name), 3, time.Hour
		texts := []string{"AAAAAAAAAAAAAAAA", "9999999999999999", "9999999999999998"}
		var ids []string
		for i, from := range slices.Clone(texts) {
			ticket, err := l.Attempt(t.Context(), p, "k", limiter.AttemptOptions{From: from, TTL: time.Hour + time.Duration(i)*time.Second})
			if err != nil || !ticket.Result.Allowed {
				t.Fatalf("%s: %+v, %v", name, ticket, err)
			}
			ids, texts = append(ids, ticket.ID), append(texts, fmt.Sprint(ticket.ExpiresAt.UnixMicro()))
		}
		for _, text := range texts {
			parts := strings.Split(ids[0], ":")
			parts[1] = text
			forged := strings.Join(parts, ":")
			_, err := l.Failed(t.Context(), forged)
			for _, err := range []error{err, l.Succeeded(t.Context(), forged)} {
				if !errors.Is(err, limiter.ErrNoTicket) {
					t.Errorf("%s: the ID %s: %v", name, text, err)
				}
			}
		}
		if u := must.OK(l.Usage(t.Context(), p, "k"))(t); u.Result.Level != 0 || u.Reservations != 3 {
			t.Errorf("%s: %+v", name, u)
		}
		for _, id := range ids {
			must.Succeed(t, l.Succeeded(t.Context(), id))
		}
	}
}

// TestUnknownTickets: reports of attempts that never began are answers, not failures of the
// database: the circuit breaker stays closed. They make no row.
func TestUnknownTickets(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	for name, l := range overAll(t, pool.Config().ConnString(), nil) {
		for i := range 20 {
			id := fmt.Sprintf("attempts:%026d:p:aw", i)
			_, err := l.Failed(t.Context(), id)
			if i%2 == 0 {
				err = l.Succeeded(t.Context(), id)
			}
			if !errors.Is(err, limiter.ErrNoTicket) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if r, err := l.Allow(t.Context(), limiter.PerHour("p", 100), "k"); err != nil || !r.Allowed {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	if n := testworld.Value[int](t, pool, "SELECT count(*) FROM pglimit_attempt"); n != 0 {
		t.Errorf("%d rows", n)
	}
}

// TestMostKnown: a key knows 100 places. One that it knows is known for longer after a success, also
// if the attempt began before it was. The next is remembered once others are forgotten.
func TestMostKnown(t *testing.T) {
	t.Parallel()
	pool, clock := testworld.NewPool(t), new(conformance.Clock)
	config := &limiter.Config{Now: clock.Now}
	p := attempts
	p.Burst = 2
	const day = 24 * time.Hour
	for name, l := range map[string]*limiter.Limiter{"memory": limiter.NewMemory(config), "database": testworld.NewLimiter(t, pool, config)} {
		var at time.Duration
		forward := func(to time.Duration) { at = to; clock.Set(at.Microseconds()) }
		forward(0)
		succeed := func(id string) { t.Helper(); must.Succeed(t, l.Succeeded(t.Context(), id)) }
		knows := func(want bool, places ...string) {
			t.Helper()
			must.OK(l.Failed(t.Context(), begin(t, l, p, "k", "stranger")))(t) // all others wait
			for _, from := range places {
				ticket, err := l.Attempt(t.Context(), p, "k", limiter.AttemptOptions{From: from})
				if r := ticket.Result; err != nil || r.Allowed != want || !want && r.Reason != limiter.ReasonBlocked {
					t.Errorf("%s: at %s: %+v, %v", name, from, r, err)
				}
				if want {
					must.OK(l.Failed(t.Context(), ticket.ID))(t)
				}
			}
			forward(at + time.Minute)
		}
		for i := range store.MostKnown - 1 {
			succeed(begin(t, l, p, "k", fmt.Sprint("place-", i)))
		}
		first, second := begin(t, l, p, "k", "twin"), begin(t, l, p, "k", "twin")
		succeed(first)
		forward(30 * time.Minute)
		succeed(second)
		succeed(begin(t, l, p, "k", "late"))
		knows(false, "late")
		knows(true, "place-0", "place-98", "twin")
		forward(90*day + 10*time.Minute)
		knows(true, "twin")
		knows(false, "place-0", "place-98", "late")
		succeed(begin(t, l, p, "k", "late"))
		knows(true, "late", "twin")
	}
	if n := testworld.Value[int](t, pool, "SELECT count(*) FROM pglimit_attempt"); n != store.MostKnown+2 {
		t.Errorf("%d rows", n)
	}
}

// TestResetForgetsNewPlaces: a Reset that waits for a success in another transaction also forgets
// the place that the success made known meanwhile.
func TestResetForgetsNewPlaces(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	p := attempts
	p.Period = time.Hour
	id := begin(t, l, p, "k", "home")
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	must.Succeed(t, l.InTx(tx).Succeeded(t.Context(), id))
	var resetting sync.WaitGroup
	resetting.Go(func() {
		if err := l.Reset(t.Context(), p, "k"); err != nil {
			t.Error(err)
		}
	})
	testworld.AwaitBlocked(t, pool)
	testworld.Commit(t, tx)
	resetting.Wait()
	if n := testworld.Value[int](t, pool, "SELECT count(*) FROM pglimit_attempt"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}
