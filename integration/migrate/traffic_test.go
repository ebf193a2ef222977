package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// states counts the errors of statements by SQLSTATE, retried or not.
type states struct {
	mu    sync.Mutex
	count map[string]int
	first map[string]error
}

func (s *states) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (s *states) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	s.note(data.Err)
}

func (s *states) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *states) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	s.note(data.Err)
}

func (s *states) TraceBatchEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	s.note(data.Err)
}

func (s *states) note(err error) {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == nil {
		s.count, s.first = map[string]int{}, map[string]error{}
	}
	s.count[answer.Code]++
	if s.first[answer.Code] == nil {
		s.first[answer.Code] = err
	}
}

func (s *states) trace(config *pgxpool.Config) { config.ConnConfig.Tracer = s }

// allows expects no statement to have failed, except with these SQLSTATEs.
func (s *states) allows(t *testing.T, codes ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for code, n := range s.count {
		if !strings.Contains(strings.Join(codes, " "), code) {
			t.Errorf("%d statements failed with %s, such as: %v", n, code, s.first[code])
		}
	}
}

// TestMigrateDownGivesWay: a transaction has a lock that Down needs, and then needs one
// that Down has. The transaction continues, and Down finishes after it.
func TestMigrateDownGivesWay(t *testing.T) {
	t.Parallel()
	take := func(key string, a limiter.Algorithm) func(context.Context, *limiter.Limiter, pgx.Tx) error {
		p := limiter.Policy{Name: "p", Algorithm: a, Limit: 10, Period: time.Hour}
		return func(ctx context.Context, l *limiter.Limiter, tx pgx.Tx) error {
			_, err := l.InTx(tx).Allow(ctx, p, key)
			return err
		}
	}
	read := func(view string) func(context.Context, *limiter.Limiter, pgx.Tx) error {
		return func(ctx context.Context, _ *limiter.Limiter, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT * FROM `+view)
			return err
		}
	}
	for name, c := range map[string]struct {
		to    int64
		steps [3]func(context.Context, *limiter.Limiter, pgx.Tx) error // the first before Down
	}{
		"tables": {0, [3]func(context.Context, *limiter.Limiter, pgx.Tx) error{
			take("k", limiter.GCRA), take("k", limiter.LeakyBucket), take("k", limiter.SlidingWindowLog)}},
		"views": {2, [3]func(context.Context, *limiter.Limiter, pgx.Tx) error{
			read("pglimit_token_bucket_now"), read("pglimit_leaky_bucket_now"), read("pglimit_sliding_window_log_now")}},
		"policies": {3, [3]func(context.Context, *limiter.Limiter, pgx.Tx) error{
			read("pglimit_override"), read("pglimit_policy"), read("pglimit_policy_version")}},
		"triggers of policies": {4, [3]func(context.Context, *limiter.Limiter, pgx.Tx) error{
			read("pglimit_override"), read("pglimit_policy"), read("pglimit_policy_version")}},
		"keys": {6, [3]func(context.Context, *limiter.Limiter, pgx.Tx) error{
			read("pglimit_keys"), read("pglimit_token_bucket_now"), take("k", limiter.SlidingWindowLog)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := testworld.NewDatabase(t)
			seen := new(states)
			pool, other := testworld.Connect(t, address, seen.trace), testworld.Connect(t, address)
			l := testworld.NewLimiter(t, pool, nil)
			tx := must.OK(pool.Begin(t.Context()))(t)
			defer tx.Rollback(context.WithoutCancel(t.Context()))
			ended := make(chan error, 1)
			for i, step := range c.steps {
				if err := step(t.Context(), l, tx); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
				if i == 0 {
					go func() {
						_, err := sets.Tables.Down(t.Context(), other, c.to)
						ended <- err
					}()
					testworld.AwaitBlocked(t, pool)
				}
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Error(err)
			}
			if err := testworld.Receive(t, ended, "Down's end"); err != nil {
				t.Errorf("Down: %v", err)
			}
			seen.allows(t)
			p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 10, Period: time.Hour}
			if _, err := l.Allow(t.Context(), p, "k"); c.to == 0 && !errors.Is(err, limiter.ErrNotMigrated) {
				t.Errorf("after Down: %v", err)
			}
		})
	}
}

// TestMigrateDownUnderTraffic drops the tables under traffic and creates them again. No
// caller's statement meets a deadlock.
func TestMigrateDownUnderTraffic(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	seen := new(states)
	pool, other := testworld.Connect(t, address, seen.trace, func(c *pgxpool.Config) { c.MaxConns = 16 }), testworld.Connect(t, address)
	l := testworld.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true, DisableBreaker: true})
	policies := testworld.Variants(1e9, time.Hour)
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for i := range 6 {
		p, q := policies[i%len(policies)], policies[(i+5)%len(policies)]
		if p.Algorithm == limiter.LeakyBucketQueue {
			p = policies[0]
		}
		callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := fmt.Sprint(n % 4)
				var err error
				switch n % 4 {
				case 0:
					var hold limiter.Reservation
					if hold, err = l.Reserve(ctx, p.Request(key, 1), time.Minute); err == nil {
						_, err = l.Settle(ctx, hold.ID, 1)
					}
				case 1:
					_, err = l.AllowAll(ctx, p.Request(key, 1), q.Request(key, 1))
				case 2:
					err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
						_, err := l.InTx(tx).Allow(ctx, p, fmt.Sprint("tx ", i))
						if err == nil {
							_, err = l.InTx(tx).Reserve(ctx, p.Request(fmt.Sprint("tx ", i), 1), time.Minute)
						}
						return err
					})
				case 3:
					_, err = pool.Exec(ctx, `SELECT * FROM pglimit_token_bucket_now, pglimit_leaky_bucket_now`)
				}
				var answer *pgconn.PgError
				if err != nil && ctx.Err() == nil && !errors.Is(err, limiter.ErrNotMigrated) && !errors.Is(err, limiter.ErrNoReservation) && !(errors.As(err, &answer) && answer.Code == "42P01") {
					t.Errorf("a caller got %v", err)
				}
			}
		})
	}
	defer callers.Wait()
	defer stop()
	for round := range 5 {
		if _, err := sets.Tables.Down(t.Context(), other, 0); err != nil {
			t.Errorf("round %d: Down: %v", round, err)
		}
		if err := sets.Tables.Up(t.Context(), other); err != nil {
			t.Fatalf("round %d: Up: %v", round, err)
		}
		testworld.Eventually(t, "callers are served", func(ctx context.Context) (bool, error) {
			var n int
			err := other.QueryRow(ctx, `SELECT count(*) FROM pglimit_reservation`).Scan(&n)
			return n > 20, err
		})
	}
	stop()
	callers.Wait()
	seen.allows(t, "42P01", "57014", "55P03")
}

// TestMigrateFunctionsDownUnderTraffic is the same for the SQL functions.
func TestMigrateFunctionsDownUnderTraffic(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	seen := new(states)
	pool, other := testworld.Connect(t, address, seen.trace), testworld.Connect(t, address)
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for i := range 4 {
		callers.Go(func() {
			for ctx.Err() == nil {
				_ = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `SELECT * FROM pglimit.token_bucket('p', $1, limit_units => 1e9, period_s => 60)`, fmt.Sprint(i))
					if err == nil {
						_, err = tx.Exec(ctx, `SELECT * FROM pglimit.reserve_with('gcra', 'p', $1, limit_units => 1e9, period_s => 60, ttl_s => 60)`, fmt.Sprint(i))
					}
					return err
				})
				_ = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { // as askers do
					_, err := tx.Exec(ctx, `SELECT * FROM pglimit_ask.allow('asked', $1)`, fmt.Sprint(i))
					if err == nil {
						_, err = tx.Exec(ctx, `SELECT s.* FROM pglimit_ask.reserve('asked', $1, 1, 60) AS r, pglimit_ask.settle(r.reservation, 1) AS s`, fmt.Sprint(i))
					}
					return err
				})
			}
		})
	}
	defer callers.Wait()
	defer stop()
	for round := range 5 {
		if err := sets.Functions.Up(t.Context(), other); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		testworld.Exec(t, other, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, askers) VALUES ('asked', 'gcra', 1e9, 60, true) ON CONFLICT DO NOTHING`)
		for _, policy := range []string{"p", "asked"} {
			const made = `SELECT count(*) FROM pglimit_reservation WHERE policy = $1`
			before := testworld.Value[int](t, other, made, policy)
			testworld.Eventually(t, "callers are served", func(ctx context.Context) (bool, error) {
				var n int
				err := other.QueryRow(ctx, made, policy).Scan(&n)
				return n > before+20, err
			})
		}
		if _, err := sets.Functions.Down(t.Context(), other, 0); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
	}
	stop()
	callers.Wait()
	seen.allows(t, "42883", "3F000", "57014", "42501") // 42501: the policy is not declared yet
}

// TestMigrateFunctionsDownAwaitsCalls: a call that began before Down goes on to its end,
// and Down comes after it. New calls fail meanwhile.
func TestMigrateFunctionsDownAwaitsCalls(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool, other := testworld.Connect(t, address), testworld.Connect(t, address)
	must.Succeed(t, sets.Functions.Up(t.Context(), other))
	testworld.Value[float64](t, pool, loginCall) // the row that is locked
	tx := must.OK(other.Begin(t.Context()))(t)
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	must.OK(tx.Exec(t.Context(), `SELECT FROM pglimit_token_bucket FOR UPDATE`))(t)
	remaining := make(chan float64, 1)
	go func() {
		var n float64
		if err := pool.QueryRow(t.Context(), loginCall).Scan(&n); err != nil {
			t.Errorf("the call that had begun: %v", err)
		}
		remaining <- n
	}()
	testworld.AwaitBlocked(t, other)
	down := make(chan error, 1)
	go func() { _, err := sets.Functions.Down(t.Context(), other, 0); down <- err }()
	testworld.Eventually(t, "new calls fail", func(ctx context.Context) (bool, error) {
		var gone bool
		err := other.QueryRow(ctx, `SELECT to_regproc('pglimit.token_bucket') IS NULL`).Scan(&gone)
		return gone, err
	})
	if len(down) > 0 || len(remaining) > 0 {
		t.Error("Down or the call did not wait")
	}
	must.Succeed(t, tx.Commit(t.Context()))
	if n := testworld.Receive(t, remaining, "the call's end"); n < 3 || n >= 3.1 {
		t.Errorf("%v remaining, want 3", n)
	}
	if err := testworld.Receive(t, down, "Down's end"); err != nil {
		t.Errorf("Down: %v", err)
	}
	if left := testworld.OwnSchema(t, other); left != "" {
		t.Errorf("Down left:\n%s", left)
	}
}

// TestMigrateFunctionsDownGivesUp: a transaction goes on. Down names it; after that, Up
// brings the functions and the rights on them back, and Down can be run again.
func TestMigrateFunctionsDownGivesUp(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool, other := testworld.Connect(t, address), testworld.Connect(t, address)
	must.Succeed(t, sets.Functions.Up(t.Context(), other))
	testworld.Exec(t, other, `REVOKE EXECUTE ON FUNCTION pglimit.reset FROM public`)
	made := testworld.OwnSchema(t, other)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	var pid int
	must.Succeed(t, tx.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid))
	_, err = sets.Functions.Down(t.Context(), other, 0)
	if err == nil || !strings.Contains(err.Error(), "55P03") || !strings.Contains(err.Error(), fmt.Sprint(pid, ": end them and undo this again")) {
		t.Errorf("Down: %v", err)
	}
	var answer *pgconn.PgError
	if _, err := other.Exec(t.Context(), loginCall); !errors.As(err, &answer) || answer.Code != "42883" {
		t.Errorf("a new call: %v", err)
	}
	must.Succeed(t, sets.Functions.Up(t.Context(), other))
	if got := testworld.OwnSchema(t, other); got != made {
		t.Errorf("up after half of down made:\n%s\nwant:\n%s", got, made)
	}
	if testworld.Value[bool](t, other, `SELECT proacl IS NULL FROM pg_proc WHERE oid = 'pglimit.reset'::regproc`) {
		t.Error("the rights on a function were lost")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := sets.Functions.Down(t.Context(), other, 0); err != nil {
		t.Errorf("Down: %v", err)
	}
}

// TestMigrateFunctionsDownRefuses: a view needs a function, a table a type. Down says so
// and leaves all as it was.
func TestMigrateFunctionsDownRefuses(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	made := testworld.OwnSchema(t, pool)
	for _, c := range []struct{ make, drop string }{
		{`CREATE VIEW theirs AS SELECT allowed FROM pglimit.check_with('gcra', 'p', 'k', 0, 5, 60)`, `DROP VIEW theirs`},
		{`CREATE TABLE theirs (answer pglimit.result)`, `DROP TABLE theirs`},
		{`CREATE VIEW theirs AS SELECT allowed FROM pglimit.allow('p', 'k')`, `DROP VIEW theirs`},
		{`CREATE VIEW theirs AS SELECT allowed FROM pglimit_ask.check('p', 'k', 0)`, `DROP VIEW theirs`},
	} {
		testworld.Exec(t, pool, c.make)
		if _, err := sets.Functions.Down(t.Context(), pool, 0); err == nil || !strings.Contains(err.Error(), "another object depends on it: drop that first") {
			t.Errorf("%s: %v", c.make, err)
		}
		if got := testworld.OwnSchema(t, pool); got != made {
			t.Errorf("%s: Down left:\n%s\nwant:\n%s", c.make, got, made)
		}
		testworld.Exec(t, pool, c.drop)
	}
	if _, err := sets.Functions.Down(t.Context(), pool, 0); err != nil {
		t.Error(err)
	}
}

// TestMigrateDownGivesUp: a transaction keeps its locks. Down says what to do; nothing
// has changed, and callers were served meanwhile.
func TestMigrateDownGivesUp(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool, other := testworld.Connect(t, address), testworld.Connect(t, address)
	l := testworld.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 1e9, Period: time.Hour}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	must.OK(l.InTx(tx).Allow(t.Context(), p, "kept"))(t)
	ended := make(chan error, 1)
	go func() {
		_, err := sets.Tables.Down(t.Context(), other, 0)
		ended <- err
	}()
	testworld.AwaitBlocked(t, pool)
	served := 0
	for ; len(ended) == 0; served++ {
		must.OK(l.Allow(t.Context(), p, "k"))(t)
	}
	err = <-ended
	if err == nil || !strings.Contains(err.Error(), "55P03") || !strings.Contains(err.Error(), "end it, or stop the traffic, and run this again") {
		t.Errorf("Down: %v", err)
	}
	if served == 0 {
		t.Error("no caller was served")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if n := testworld.Value[int](t, other, `SELECT count(*) FROM pglimit_token_bucket WHERE key = 'kept' AND level = 1`); n != 1 {
		t.Errorf("%d rows are left of the transaction that went on, want 1", n)
	}
}
