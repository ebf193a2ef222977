package bed

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// Doorway is a limiter with one statement in flight at a time. While the test keeps the
// gate closed, none is: the first request waits for its connection, and later ones queue
// for the next statement.
type Doorway struct {
	*limiter.Limiter
	Arrived chan struct{}
	barrier chan struct{} // nil: open
	Asked   int           // since the gate was closed
	first   int           // callers that wait when the first request has arrived: 1 or 0
}

// NewDoorway makes a doorway over the database at url.
func NewDoorway(t testing.TB, url string, config limiter.Config) *Doorway {
	t.Helper()
	g := &Doorway{Arrived: make(chan struct{})}
	g.Limiter = NewGated(t, Connect(t, url, g.Guard), config)
	return g
}

// NewGated creates a doorway's limiter: one statement at a time and no deny cache.
func NewGated(t testing.TB, pool *pgxpool.Pool, config limiter.Config) *limiter.Limiter {
	t.Helper()
	if err := pool.Ping(t.Context()); err != nil { // else there is no connection to guard
		t.Fatal(err)
	}
	config.BatchStatements, config.DisableDenyCache = 1, true
	if config.Timeout == 0 {
		config.Timeout = time.Minute
	}
	return NewLimiter(t, pool, &config)
}

// Guard makes a pool's connections wait at the gate.
func (g *Doorway) Guard(cfg *pgxpool.Config) {
	cfg.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
		if barrier := g.barrier; barrier != nil {
			g.Arrived <- struct{}{}
			<-barrier
		}
		return true, nil
	}
}

// Shut closes the gate.
func (g *Doorway) Shut() { g.barrier, g.Asked = make(chan struct{}), 0 }

// Reopen opens the gate for all that wait there.
func (g *Doorway) Reopen() {
	barrier := g.barrier
	g.barrier = nil
	close(barrier)
}

// Queue sends a request from a new goroutine. It returns when the request is queued or
// answered: Config.Timeout may end it before it is queued.
func (g *Doorway) Queue(ctx context.Context, request limiter.Request) <-chan Answer {
	return g.await(Request(ctx, g.Limiter, request))
}

// QueueUpTo is Queue for AllowUpTo.
func (g *Doorway) QueueUpTo(ctx context.Context, request limiter.Request) <-chan Answer {
	return g.await(requestUpTo(ctx, g.Limiter, request))
}

// await waits until a request that was sent is queued or answered.
func (g *Doorway) await(answers chan Answer) <-chan Answer {
	if g.Asked == 0 {
		select {
		case <-g.Arrived:
		case early := <-answers:
			answers <- early
			return answers
		}
		g.first = g.Waiting()
	}
	for g.Waiting() < g.first+g.Asked && len(answers) == 0 {
		runtime.Gosched()
	}
	g.Asked++
	return answers
}

// Door is a doorway of either kind: requests that arrive while it is closed share
// statements.
type Door interface {
	limiter.Decider
	Shut()
	Reopen()
	Queue(context.Context, limiter.Request) <-chan Answer
	QueueUpTo(context.Context, limiter.Request) <-chan Answer
}

// Answer is a request's result and error.
type Answer struct {
	limiter.Result
	Err error
}

// Request sends a request from a new goroutine, with the gate open.
func Request(ctx context.Context, l *limiter.Limiter, request limiter.Request) chan Answer {
	return send(func() (limiter.Result, error) { return l.Do(ctx, request) })
}

// requestUpTo is Request for AllowUpTo.
func requestUpTo(ctx context.Context, l *limiter.Limiter, request limiter.Request) chan Answer {
	return send(func() (limiter.Result, error) { return l.AllowUpTo(ctx, request.Policy, request.Key, request.Cost) })
}

func send(ask func() (limiter.Result, error)) chan Answer {
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
	late := time.NewTimer(30 * time.Second)
	defer late.Stop()
	select {
	case got := <-answers:
		if got.Err != nil {
			t.Fatalf("%s: %v", what, got.Err)
		}
		return got.Result
	case <-late.C:
		t.Fatalf("%s: no answer", what)
	}
	return limiter.Result{}
}

// SQLDoorway is a doorway over database/sql. The test closes the gate by taking its only
// connection.
type SQLDoorway struct {
	*limiter.Limiter
	t     testing.TB
	db    *sql.DB
	taken *sql.Conn
	asked int // since the gate was closed
	first int // callers that wait when the first request has arrived: 1 or 0
}

// NewSQLDoorway makes a doorway over the database at address.
func NewSQLDoorway(t testing.TB, driver, address string, config limiter.Config) *SQLDoorway {
	t.Helper()
	g := &SQLDoorway{t: t, db: ConnectSQL(t, driver, address)}
	g.db.SetMaxOpenConns(1)
	config.BatchStatements, config.DisableDenyCache, config.Timeout = 1, true, time.Minute
	g.Limiter = NewSQL(t, g.db, &config)
	return g
}

// Shut takes the connection.
func (g *SQLDoorway) Shut() {
	var err error
	if g.taken, err = g.db.Conn(context.Background()); err != nil {
		g.t.Fatal(err)
	}
	g.asked = 0
}

// Reopen gives the connection back.
func (g *SQLDoorway) Reopen() {
	if err := g.taken.Close(); err != nil {
		g.t.Fatal(err)
	}
}

// Queue sends a request from a new goroutine and returns when it is queued.
func (g *SQLDoorway) Queue(ctx context.Context, request limiter.Request) <-chan Answer {
	return g.await(func() chan Answer { return Request(ctx, g.Limiter, request) })
}

// QueueUpTo is Queue for AllowUpTo.
func (g *SQLDoorway) QueueUpTo(ctx context.Context, request limiter.Request) <-chan Answer {
	return g.await(func() chan Answer { return requestUpTo(ctx, g.Limiter, request) })
}

func (g *SQLDoorway) await(ask func() chan Answer) <-chan Answer {
	before := g.db.Stats().WaitCount
	answers := ask()
	if g.asked == 0 {
		for g.db.Stats().WaitCount == before {
			runtime.Gosched()
		}
		g.first = g.Waiting()
	}
	for g.Waiting() < g.first+g.asked {
		runtime.Gosched()
	}
	g.asked++
	return answers
}
