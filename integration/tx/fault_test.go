package tx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/sqldb"
	"github.com/pglimit/pglimit/limiter"
)

// TestSQLSendsOnce: if only the answer is lost, the error says that the outcome is
// unknown, and the statement is not sent again: units would be given back twice.
func TestSQLSendsOnce(t *testing.T) {
	testworld.OverDrivers(t, func(t *testing.T, driver string) {
		address := testworld.NewDatabase(t)
		w := testworld.NewWire(t, address)
		l := testworld.NewSQL(t, testworld.ConnectSQL(t, driver, w.URL), nil)
		direct := testworld.NewLimiter(t, testworld.Connect(t, address), nil)
		for _, p := range testworld.Variants(10, 1000*time.Hour) {
			if p.Algorithm == limiter.LeakyBucketQueue {
				continue
			}
			testworld.Must(t)(l.AllowN(t.Context(), p, "k", 5))
			w.LoseAnswer("SELECT 1")
			if r, err := l.Refund(t.Context(), p, "k", 1); !errors.Is(err, limiter.ErrUnavailable) {
				t.Errorf("%s: the answer was lost: %+v, %v", testworld.Variant(p), r, err)
			}
			if r := testworld.Must(t)(direct.Check(t.Context(), p, "k", 0)); !testworld.Near(r.Level, 4) {
				t.Errorf("%s: after one refund of 1 of 5: %+v", testworld.Variant(p), r)
			}
			testworld.Must(t)(l.Allow(t.Context(), p, "k")) // and goes on
		}
	})
}

// TestSQLAnswersAreCommitted: a row that came back before its commit failed is not
// returned, for a single statement and for several in one.
func TestSQLAnswersAreCommitted(t *testing.T) {
	testworld.OverDrivers(t, func(t *testing.T, driver string) {
		address := testworld.NewDatabase(t)
		pool := testworld.Connect(t, address)
		testworld.Exec(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '57014'; END $$`)
		testworld.Exec(t, pool, `CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON pglimit_token_bucket
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.key LIKE 'refused%') EXECUTE FUNCTION refuse()`)
		g := testworld.NewSQLGate(t, driver, address, limiter.Config{})
		p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
		refused := func(got testworld.Answer) {
			t.Helper()
			if !errors.Is(got.Err, limiter.ErrUnavailable) || got.Allowed {
				t.Errorf("%+v, %v", got.Result, got.Err)
			}
		}
		r, err := g.Allow(t.Context(), p, "refused")
		refused(testworld.Answer{Result: r, Err: err})
		r, err = g.Charge(t.Context(), p, "refused", 1)
		refused(testworld.Answer{Result: r, Err: err})
		if err := g.Block(t.Context(), p, "refused", time.Hour); !errors.Is(err, limiter.ErrUnavailable) {
			t.Errorf("a block: %v", err)
		}
		g.Shut()
		first := g.Queue(t.Context(), p.Request("first", 1))
		many := []<-chan testworld.Answer{g.Queue(t.Context(), p.Request("refused", 1)), g.Queue(t.Context(), p.Request("refused too", 1))}
		g.Reopen()
		testworld.ResultOf(t, "the first", first)
		for _, a := range many {
			refused(<-a)
		}
	})
}

// begin is how a transaction begins that needs no settings.
type begin struct{}

func (begin) Question() string { return "" }
func (begin) Answer(bool)      {}
func (begin) Text() string     { return "begin" }

// TestSQLOwnTransaction: statements sent as one transaction commit if all succeed, and
// otherwise roll back.
func TestSQLOwnTransaction(t *testing.T) {
	testworld.OverDrivers(t, func(t *testing.T, driver string) {
		address := testworld.NewDatabase(t)
		pool := testworld.Connect(t, address)
		testworld.Exec(t, pool, "CREATE TABLE notes (note text PRIMARY KEY)")
		own := sqldb.NewPool(testworld.ConnectSQL(t, driver, address), begin{})
		changed := errors.New("changed my mind")
		ctx, cancel := context.WithCancel(t.Context())
		for note, c := range map[string]struct {
			ctx  context.Context
			then func() error
			want error
		}{
			"kept":      {t.Context(), func() error { return nil }, nil},
			"undone":    {t.Context(), func() error { return changed }, changed},
			"cancelled": {ctx, func() error { cancel(); return nil }, context.Canceled},
		} {
			err := own.InTx(c.ctx, func(tx db.DBTX) error {
				if n, err := tx.Exec(c.ctx, "INSERT INTO notes VALUES ($1::text)", note); err != nil || n.RowsAffected() != 1 {
					t.Errorf("%s: %v, %v", note, n, err)
				}
				return c.then()
			})
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", note, err, c.want)
			}
		}
		if notes := testworld.Value[string](t, pool, "SELECT string_agg(note, ' ') FROM notes"); notes != "kept" {
			t.Errorf("there are %s", notes)
		}
	})
}

// TestSQLFindsClosedConnections: connections that the server closed while they were idle
// cost no caller its answer.
func TestSQLFindsClosedConnections(t *testing.T) {
	testworld.OverDrivers(t, func(t *testing.T, driver string) {
		address := testworld.NewDatabase(t)
		pool := testworld.Connect(t, address)
		db := testworld.ConnectSQL(t, driver, address)
		db.SetMaxIdleConns(3)
		p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
		closeAll := func() {
			var idle []*sql.Conn
			var pids [3]int32 // a cluster's maintenance has sessions in the database too
			for i := range pids {
				c := must.OK(db.Conn(t.Context()))(t)
				must.Succeed(t, c.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pids[i]))
				idle = append(idle, c)
			}
			for _, c := range idle {
				must.Succeed(t, c.Close())
			}
			testworld.Exec(t, pool, `SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid`, pids[:])
			testworld.Eventually(t, "all have ended", func(ctx context.Context) (bool, error) {
				var n int
				err := pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ($1)`, pids[:]).Scan(&n)
				return n == 0, err
			})
		}
		closeAll()
		l := testworld.NewSQL(t, db, nil)
		testworld.Must(t)(l.Allow(t.Context(), p, "k"))
		closeAll()
		// This one was used a moment ago, so it may fail; no other does.
		if _, err := l.Allow(t.Context(), p, "k"); err != nil && !errors.Is(err, limiter.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		testworld.Must(t)(l.Allow(t.Context(), p, "k"))
		testworld.Must(t)(l.Allow(t.Context(), p, "k"))
	})
}

// TestSQLServerHangs: a server that stops answering delays no caller beyond its timeout,
// and opens the breaker. That holds at any point of the exchange, and in a database of a
// stricter isolation, where each decision is a transaction.
func TestSQLServerHangs(t *testing.T) {
	testworld.OverDrivers(t, func(t *testing.T, driver string) {
		for _, c := range []struct{ isolation, at string }{
			{"read committed", ""}, {"read committed", "INSERT 0 1"},
			{"repeatable read", ""}, {"repeatable read", "INSERT 0 1"}, {"repeatable read", "COMMIT"},
		} {
			t.Run(c.isolation+", "+c.at, func(t *testing.T) {
				t.Parallel()
				log := testworld.NewCommitLog(t)
				testworld.Isolate(t, log.Pool, c.isolation)
				w := testworld.NewWire(t, log.URL)
				l := testworld.NewSQL(t, testworld.ConnectSQL(t, driver, w.URL), &limiter.Config{Timeout: 5 * time.Second, BreakAfter: 3, BreakFor: time.Hour})
				p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 1000, Period: 1000 * time.Hour}
				log.MeetConflict(t, l, p)
				w.Stall(c.at)
				// Each has its own key: a transaction that hangs has locked its row.
				answers := make(chan testworld.Answer)
				for _, request := range []func() (limiter.Result, error){
					func() (limiter.Result, error) { return l.Allow(t.Context(), p, "allowed") },
					func() (limiter.Result, error) { return l.Charge(t.Context(), p, "filled", 1) },
					func() (limiter.Result, error) {
						return limiter.Result{}, l.Block(t.Context(), p, "blocked", time.Hour)
					},
				} {
					go func() {
						r, err := request()
						answers <- testworld.Answer{Result: r, Err: err}
					}()
				}
				for range 3 {
					got := testworld.Receive(t, answers, "an answer within the timeout")
					if !errors.Is(got.Err, limiter.ErrUnavailable) || !errors.Is(got.Err, context.DeadlineExceeded) {
						t.Errorf("%+v, %v", got.Result, got.Err)
					}
				}
				// The breaker counts a statement a moment after its caller has gone.
				n := 0
				testworld.Eventually(t, "the breaker opens", func(context.Context) (bool, error) {
					n++
					_, err := l.Charge(t.Context(), p, fmt.Sprint("filled-", n), 1)
					return errors.Is(err, limiter.ErrUnavailable) && strings.Contains(err.Error(), "circuit breaker is open"), nil
				})
			})
		}
	})
}

// TestAbandonedTransactionsReturnConnections: a caller whose context ends at any moment of
// an AllowAll leaves no connection in use.
func TestAbandonedTransactionsReturnConnections(t *testing.T) {
	testworld.OverDrivers(t, func(t *testing.T, driver string) {
		db := testworld.ConnectSQL(t, driver, testworld.NewDatabase(t))
		db.SetMaxOpenConns(4)
		l := testworld.NewSQL(t, db, nil)
		p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1e6, Period: time.Hour}
		ended := 0
		for i := range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*25*time.Microsecond)
			if _, err := l.AllowAll(ctx, p.Request("a", 1), p.Request("b", 1)); err != nil {
				ended++
			}
			cancel()
		}
		if ended == 0 {
			t.Error("no context ended early")
		}
		testworld.Eventually(t, "no connection is in use", func(context.Context) (bool, error) { return db.Stats().InUse == 0, nil })
	})
}
