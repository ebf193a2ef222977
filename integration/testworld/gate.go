package testworld

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// Gate is a limiter with one statement in flight at a time. While the test keeps it shut,
// none is: the first request waits for its connection, and later ones queue for the next
// statement.
type Gate struct {
	*limiter.Limiter
	Asked   int          // requests since it was shut
	Arrived func() int64 // how often a request has waited for a connection
	shut    func() (reopen func())
	reopen  func()
	before  int64 // Arrived when it was shut
	first   int   // callers that wait when the first request has arrived: 1 or 0
}

// NewGate makes a gate over the database at url. Its connections wait before they are
// used.
func NewGate(t testing.TB, url string, config limiter.Config, changes ...func(*pgxpool.Config)) *Gate {
	t.Helper()
	var barrier atomic.Pointer[chan struct{}] // nil: open
	var arrived atomic.Int64
	pool := Connect(t, url, append(changes, func(settings *pgxpool.Config) {
		settings.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
			if b := barrier.Load(); b != nil {
				arrived.Add(1)
				<-*b
			}
			return true, nil
		}
	})...)
	if err := pool.Ping(t.Context()); err != nil { // else there is no connection to keep
		t.Fatal(err)
	}
	return &Gate{Limiter: NewLimiter(t, pool, oneStatement(config)), Arrived: arrived.Load, shut: func() func() {
		b := make(chan struct{})
		barrier.Store(&b)
		return func() { barrier.Store(nil); close(b) }
	}}
}

// NewSQLGate makes a gate over database/sql. Its only connection is taken while it is
// shut.
func NewSQLGate(t testing.TB, driver, address string, config limiter.Config) *Gate {
	t.Helper()
	db := ConnectSQL(t, driver, address)
	db.SetMaxOpenConns(1)
	return &Gate{Limiter: NewSQL(t, db, oneStatement(config)), Arrived: func() int64 { return db.Stats().WaitCount }, shut: func() func() {
		var taken *sql.Conn
		var err error
		if taken, err = db.Conn(context.Background()); err != nil {
			t.Fatal(err)
		}
		return func() { _ = taken.Close() }
	}}
}

func oneStatement(config limiter.Config) *limiter.Config {
	config.BatchStatements, config.DisableDenyCache = 1, true
	return &config
}

// Shut keeps requests from the database.
func (g *Gate) Shut() {
	g.reopen, g.Asked = g.shut(), 0
	g.before = g.Arrived()
}

// Reopen lets all that wait continue.
func (g *Gate) Reopen() { g.reopen() }

// Queue sends a request, as Send does.
func (g *Gate) Queue(ctx context.Context, request limiter.Request) <-chan Answer {
	return g.Send(func() (limiter.Result, error) { return g.Do(ctx, request) })
}

// Send calls ask in a new goroutine. It returns when its request is queued or answered:
// Config.Timeout may end it before it is queued.
func (g *Gate) Send(ask func() (limiter.Result, error)) <-chan Answer {
	answers := Send(ask)
	if g.Asked == 0 {
		for g.Arrived() == g.before {
			if len(answers) > 0 {
				return answers
			}
			runtime.Gosched()
		}
		g.first = g.Waiting()
	}
	for g.Waiting() < g.first+g.Asked && len(answers) == 0 {
		runtime.Gosched()
	}
	g.Asked++
	return answers
}

// Answer is a request's result and error.
type Answer struct {
	limiter.Result
	Err error
}

// Request sends a request from a new goroutine.
func Request(ctx context.Context, l *limiter.Limiter, request limiter.Request) <-chan Answer {
	return Send(func() (limiter.Result, error) { return l.Do(ctx, request) })
}

// Send calls ask in a new goroutine.
func Send(ask func() (limiter.Result, error)) <-chan Answer {
	answers := make(chan Answer, 1)
	go func() {
		r, err := ask()
		answers <- Answer{r, err}
	}()
	return answers
}

// AwaitWaiting waits until n callers wait.
func AwaitWaiting(t *testing.T, l *limiter.Limiter, n int) {
	t.Helper()
	Eventually(t, fmt.Sprintf("%d callers wait", n), func(context.Context) (bool, error) { return l.Waiting() == n, nil })
}

// ResultOf returns the result of a request that nothing delays. Its timeout only prevents
// a hang, and is shorter than the limiter's own.
func ResultOf(t *testing.T, what string, answers <-chan Answer) limiter.Result {
	t.Helper()
	got := Receive(t, answers, what)
	if got.Err != nil {
		t.Fatalf("%s: %v", what, got.Err)
	}
	return got.Result
}
