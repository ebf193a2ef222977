// Package share tests requests of all verbs that share transactions, over a real PostgreSQL
// server.
package share

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }

// bucket has a limit that a test does not reach. Its period is so long that nothing leaks
// during a test, however slow the machine is.
var bucket = limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 1000, Period: 100 * 365 * 24 * time.Hour}

// crowd is a limiter with one transaction in flight at a time. While its gate is shut, the
// first request waits for its connection, and those behind it share the next transactions.
type crowd struct {
	*bed.Doorway
	sent *sent
}

// newCrowd creates a crowd over the database at url.
func newCrowd(t *testing.T, url string, config limiter.Config, changes ...func(*pgxpool.Config)) *crowd {
	t.Helper()
	c := &crowd{Doorway: &bed.Doorway{Arrived: make(chan struct{})}, sent: new(sent)}
	changes = append(changes, bed.OneConnection, c.Guard, c.sent.trace)
	c.Limiter = bed.NewGated(t, bed.Connect(t, url, changes...), config)
	return c
}

// behind sends requests while the gate is shut, each once the one before it waits, and opens
// the gate. The first is sent alone, and the others wait behind it.
func (c *crowd) behind(requests ...func() error) (errs []error) {
	c.Shut()
	answers := make([]chan error, len(requests))
	for i, f := range requests {
		answers[i] = make(chan error, 1)
		go func() { answers[i] <- f() }()
		if i == 0 {
			<-c.Arrived
		}
		for c.Waiting() < i+1 {
			runtime.Gosched()
		}
	}
	c.sent.take()
	c.Reopen()
	for _, answer := range answers {
		errs = append(errs, <-answer)
	}
	return errs
}

// charges returns requests that charge one unit to each key.
func charges(t *testing.T, l *limiter.Limiter, p limiter.Policy, keys ...string) (all []func() error) {
	for _, k := range keys {
		all = append(all, func() error {
			_, err := l.Charge(t.Context(), p, k, 1)
			return err
		})
	}
	return all
}

// expectLevels fails the test unless the keys of the bucket have these levels.
func expectLevels(t *testing.T, l *limiter.Limiter, levels map[string]float64) {
	t.Helper()
	for k, want := range levels {
		if r := bed.Must(t)(l.Check(t.Context(), bucket, k, 0)); !bed.Near(r.Level, want) {
			t.Errorf("the level of %s is %v, want %v", k, r.Level, want)
		}
	}
}

// sent is a tracer that records how many statements were sent together.
type sent struct {
	together func() // called before a send of many; may be nil

	mu        sync.Mutex
	sizes     []int
	deadlocks int
}

func (s *sent) trace(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = s }

func (s *sent) add(n int) { s.mu.Lock(); defer s.mu.Unlock(); s.sizes = append(s.sizes, n) }

// take returns the sizes since it was last called.
func (s *sent) take() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	sizes := s.sizes
	s.sizes = nil
	return sizes
}

// expect fails the test unless so many statements were sent together since the last take.
func (s *sent) expect(t *testing.T, want ...int) {
	t.Helper()
	if got := s.take(); !slices.Equal(got, want) {
		t.Errorf("sent %v statements together, want %v", got, want)
	}
}

// TraceQueryStart implements pgx.QueryTracer.
func (s *sent) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if data.SQL != db.TableOwners { // sent every few seconds
		s.add(1)
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (s *sent) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	s.end(data.Err)
}

// TraceBatchStart implements pgx.BatchTracer.
func (s *sent) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	if s.add(data.Batch.Len()); s.together != nil {
		s.together()
	}
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (s *sent) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (s *sent) TraceBatchEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	s.end(data.Err)
}

func (s *sent) end(err error) {
	var answer *pgconn.PgError
	if errors.As(err, &answer) && answer.Code == "40P01" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.deadlocks++
	}
}
