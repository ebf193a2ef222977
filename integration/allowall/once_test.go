package allowall

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// guesses counts the statements that take all or fail: how many took, and how many failed
// because the guess that all have room was wrong.
type guesses struct {
	testworld.Trace
	right, wrong atomic.Int64
}

func newGuesses() *guesses {
	g := new(guesses)
	g.After = func(sql string, err error) {
		if !strings.Contains(sql, "TakeAll :many") {
			return
		}
		var answer *pgconn.PgError
		switch {
		case err == nil:
			g.right.Add(1)
		case errors.As(err, &answer) && answer.Code == "22P02":
			g.wrong.Add(1)
		}
	}
	return g
}

// spread are requests for keys of several tables, one, or one key.
func spread(policies []limiter.Policy, key string) map[string][]limiter.Request {
	tables, row := []limiter.Request{}, policies[0]
	for _, p := range policies {
		tables = append(tables, p.Request(key+"tables", 1), p.Request(key+"others", 1))
	}
	return map[string][]limiter.Request{
		"of all tables": tables,
		"of one table":  {row.Request(key+"one", 1), row.Request(key+"two", 1)},
		"of one key":    {row.Request(key+"same", 1), row.Request(key+"same", 1)},
	}
}

// TestAllowAllAtOnce: keys that had room are taken in one round trip. If another client has
// used one up, that costs two more than usual, once. If they are in several tables, it costs
// one more later: pgx prepares the statements of a pipeline again after one failed. A denial leaves nothing behind, is no failure for the circuit
// breaker, and the connection remains usable.
func TestAllowAllAtOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := testworld.NewDatabase(t)
	var trips atomic.Int64
	pool := testworld.Connect(t, url, testworld.OneConnection, countTrips(&trips))
	l, other := testworld.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true, BreakAfter: 1}), testworld.NewLimiter(t, testworld.Connect(t, url), nil)
	policies := testworld.Variants(100, 100_000*time.Hour)
	full := limiter.Policy{Name: "full", Algorithm: limiter.GCRA, Limit: 1, Period: 1000 * time.Hour}
	testworld.Must(t)(l.Allow(ctx, full, "k"))
	steps := []string{"new keys", "again", "and again", "used up", "used up again", "reset", "prepared again", "after that"}
	took := map[string][]int64{}
	for round := range 4 { // statements are prepared; once a second expired reservations are looked up
		for what, requests := range spread(policies, fmt.Sprint(round)) {
			last := requests[len(requests)-1]
			for i, step := range steps {
				switch step {
				case "used up":
					testworld.Must(t)(other.Charge(ctx, last.Policy, last.Key, 100))
					testworld.Must(t)(l.Allow(ctx, full, "k")) // denied: it looks up what the next would
				case "reset":
					must.Succeed(t, other.Reset(ctx, last.Policy, last.Key))
				}
				before := trips.Load()
				all := testworld.MustAll(t)(l.AllowAll(ctx, requests...))
				n := trips.Load() - before
				if round == 0 {
					took[what] = append(took[what], n)
				}
				took[what][i] = min(took[what][i], n)
				if want := !strings.HasPrefix(step, "used up"); all.Allowed != want {
					t.Errorf("%s, %s: %+v", what, step, all)
				}
			}
			// The first key was taken three times and, after the denials, three times. If it is
			// also the last, it was reset meanwhile, and has two requests.
			first := requests[0]
			if r := testworld.Must(t)(other.Check(ctx, first.Policy, first.Key, 0)); !testworld.Near(r.Level, 6) {
				t.Errorf("%s: level %v, want 6", what, r.Level)
			}
		}
	}
	for what, n := range took {
		n[3] = max(n[3], 4) // pgx may send DEALLOCATE later
		want := "[2 1 1 4 2 2 1 1]"
		if what == "of all tables" {
			want = "[2 1 1 4 2 2 2 1]"
		}
		if got := fmt.Sprint(n); got != want {
			t.Errorf("%s: %s round trips for %q, want %s", what, got, steps, want)
		}
	}
	if n := pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were opened, want 1", n)
	}
}

// TestAllowAllAtOnceIsOneTransaction: in every mode of pgx a denial by the last of several
// tables leaves nothing behind. database/sql has no pipeline; there it is one transaction
// too.
func TestAllowAllAtOnceIsOneTransaction(t *testing.T) {
	url := testworld.NewDatabase(t)
	other := testworld.NewLimiter(t, testworld.Connect(t, url), nil)
	test := func(t *testing.T, l *limiter.Limiter) {
		ctx := t.Context()
		for what, requests := range spread(testworld.Variants(100, 100_000*time.Hour), t.Name()) {
			first, last := requests[0], requests[len(requests)-1]
			for _, want := range []bool{true, true, false} {
				if !want {
					testworld.Must(t)(other.Charge(ctx, last.Policy, last.Key, 100))
				}
				if all := testworld.MustAll(t)(l.AllowAll(ctx, requests...)); all.Allowed != want {
					t.Errorf("%s: %+v", what, all)
				}
			}
			if r := testworld.Must(t)(other.Check(ctx, first.Policy, first.Key, 0)); first != last && !testworld.Near(r.Level, 2) {
				t.Errorf("%s: level %v, want 2", what, r.Level)
			}
		}
	}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			g := newGuesses()
			test(t, testworld.NewLimiter(t, testworld.Connect(t, url, g.On, func(config *pgxpool.Config) { config.ConnConfig.DefaultQueryExecMode = mode }), nil))
			if g.right.Load() == 0 || g.wrong.Load() != 3 {
				t.Errorf("%d guesses were right, %d wrong", g.right.Load(), g.wrong.Load())
			}
		})
	}
	testworld.OverDrivers(t, func(t *testing.T, driver string) {
		l := must.OK(limiter.NewSQL(testworld.ConnectSQL(t, driver, url), testworld.WithPatience(nil)))(t)
		test(t, l)
	})
}

// TestAllowAllAtOnceOnlyIfLikely: a request that is large beside what may be free, and keys
// of which much is in use, are not guessed at: a wrong guess is an error in the server's
// log.
func TestAllowAllAtOnceOnlyIfLikely(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newGuesses()
	l := testworld.NewLimiter(t, testworld.Connect(t, testworld.NewDatabase(t), g.On), nil)
	for _, p := range testworld.Variants(100, 100_000*time.Hour) {
		for _, cost := range []float64{1, 10, 26, 45, 100} {
			key := fmt.Sprint(cost)
			for all := (limiter.Results{Allowed: true}); all.Allowed; {
				all = testworld.MustAll(t)(l.AllowAll(ctx, p.Request(key, cost), p.Request(key+"other", 1)))
			}
		}
	}
	if g.right.Load() == 0 || g.wrong.Load() > 0 {
		t.Errorf("%d guesses were right, %d wrong", g.right.Load(), g.wrong.Load())
	}
}

// TestAllowAllAtOnceConflicts: if the database's default isolation is stricter, the first
// conflict moves the statements into a transaction at read committed. Nothing is counted
// twice.
func TestAllowAllAtOnceConflicts(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, isolation := range []string{"repeatable read", "serializable"} {
		for _, tables := range []string{"of all tables", "of one table", "of one key"} {
			t.Run(isolation+" "+tables, func(t *testing.T) {
				t.Parallel()
				c := testworld.NewCommitLog(t)
				l := testworld.NewLimiter(t, testworld.Connect(t, c.URL, testworld.Setting("default_transaction_isolation", isolation)), nil)
				requests := spread(testworld.Variants(100, 100_000*time.Hour), "k")[tables]
				for range 2 {
					testworld.MustAll(t)(l.AllowAll(ctx, requests...))
				}
				testworld.Exec(t, c.Pool, `CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF current_setting('transaction_isolation') <> 'read committed' THEN
						RAISE EXCEPTION 'another transaction changed it' USING ERRCODE = 'serialization_failure';
					END IF;
					RETURN NEW;
				END $$`)
				last := requests[len(requests)-1].Policy
				testworld.Exec(t, c.Pool, `CREATE TRIGGER conflict BEFORE INSERT ON `+testworld.TableOf(last.Algorithm)+` FOR EACH ROW EXECUTE FUNCTION conflict()`)
				testworld.Exec(t, c.Pool, `TRUNCATE committed`)
				for range 2 {
					testworld.MustAll(t)(l.AllowAll(ctx, requests...))
				}
				if got := testworld.Value[string](t, c.Pool, `SELECT string_agg(DISTINCT isolation, ', ') FROM committed`); got != "read committed" {
					t.Errorf("committed at %s", got)
				}
				want := 4.0
				if tables == "of one key" {
					want = 8
				}
				for _, request := range requests {
					if r := testworld.Must(t)(l.Check(ctx, request.Policy, request.Key, 0)); !testworld.Near(r.Level, want) {
						t.Errorf("%s: level %v, want %v", testworld.Variant(request.Policy), r.Level, want)
					}
				}
			})
		}
	}
}

// TestAllowAllAtOnceLocked: a row that is locked longer than Config.Timeout ends the request,
// which takes nothing; units of the rows before it are given back.
func TestAllowAllAtOnceLocked(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := testworld.NewDatabase(t)
	pool, other := testworld.Connect(t, url), testworld.Connect(t, url)
	l := testworld.NewLimiter(t, pool, nil)
	for what, requests := range spread(testworld.Variants(100, 100_000*time.Hour), "k") {
		last := requests[len(requests)-1]
		testworld.MustAll(t)(l.AllowAll(ctx, requests...))
		tx := testworld.Begin(t, other, pgx.TxOptions{})
		testworld.Must(t)(l.InTx(tx).Allow(ctx, last.Policy, last.Key))
		err := testworld.UntilLocked(func(timeout time.Duration) error {
			all, err := testworld.NewLimiter(t, pool, &limiter.Config{Timeout: timeout}).AllowAll(ctx, requests...)
			if all.Allowed {
				t.Errorf("%s: %+v, %v", what, all, err)
			}
			return err
		})
		if !errors.Is(err, limiter.ErrLocked) {
			t.Errorf("%s: %v", what, err)
		}
		must.Succeed(t, tx.Rollback(ctx))
		testworld.MustAll(t)(l.AllowAll(ctx, requests...))
		want := 2.0
		if what == "of one key" {
			want = 4
		}
		for i, request := range requests {
			if r := testworld.Must(t)(l.Check(ctx, request.Policy, request.Key, 0)); !testworld.Near(r.Level, want) {
				t.Errorf("%s: request %d: level %v, want %v", what, i, r.Level, want)
			}
		}
	}
}

// TestAllowAllCrash: if the connection is gone between the decisions and the COMMIT, or before
// a request at once, nothing is left. Neither is sent again, because it may have been done.
func TestAllowAllCrash(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := testworld.NewDatabase(t)
	other := testworld.Connect(t, url)
	var crashes string // before that statement, or a pipeline that ends with it
	crash := &testworld.Trace{Before: func(sent testworld.Sent) {
		if crashes == "" || !strings.Contains(sent[len(sent)-1].SQL, crashes) {
			return
		}
		crashes = ""
		if !testworld.Value[bool](t, other, `SELECT bool_and(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'crash' AND datname = current_database()`) {
			t.Error("no session has ended")
		}
	}}
	pool := testworld.Connect(t, url, testworld.OneConnection, testworld.Setting("application_name", "crash"), crash.On)
	l := testworld.NewLimiter(t, pool, nil)
	for what, requests := range spread(testworld.Variants(100, 100_000*time.Hour), "k") {
		each := 1.0
		if what == "of one key" {
			each = 2
		}
		for granted, text := range []string{"commit", "", "TakeAll :many"} {
			crashes = text
			all, err := l.AllowAll(ctx, requests...)
			if errors.Is(err, limiter.ErrUnavailable) != (text != "") || all.Allowed != (text == "") {
				t.Errorf("%s, before %q: %+v, %v", what, text, all, err)
			}
			want := each * min(1, float64(granted))
			for _, request := range requests {
				if r := testworld.Must(t)(l.Check(ctx, request.Policy, request.Key, 0)); !testworld.Near(r.Level, want) {
					t.Errorf("%s, before %q: level %v, want %v", what, text, r.Level, want)
				}
			}
		}
	}
}
