package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
)

// prompt is estimated at one token, so an answer of 99 reserves 100.
const prompt = "hi"

var errGone = errors.New("the reader is gone")

// gone is a reader that goes away after that many chunks.
type gone struct{ after int }

func (g *gone) Write(p []byte) (int, error) {
	if g.after--; g.after < 0 {
		return 0, errGone
	}
	return len(p), nil
}

// TestHowAnAnswerEnds: however the stream ends, the tokens used are counted and nothing
// stays reserved.
func TestHowAnAnswerEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		model Model
		out   io.Writer
		used  int
		err   error
	}{
		"below":                    {uses(nil, nil, 20, 10), io.Discard, 30, nil},
		"all of it":                {uses(nil, nil, 40, 60), io.Discard, 100, nil},
		"above":                    {uses(nil, nil, 90, 40), io.Discard, 130, nil},
		"failed before anything":   {uses(errModel, nil), io.Discard, 0, errModel},
		"failed in the middle":     {uses(errModel, nil, 20, 10), io.Discard, 30, errModel},
		"failed at the end, above": {uses(errModel, nil, 90, 40), io.Discard, 130, errModel},
		"an empty answer":          {uses(nil, nil), io.Discard, 0, nil},
		"the reader went away":     {uses(nil, nil, 20, 10, 50), &gone{1}, 30, errGone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newProcess(t, testdb.Migrated.New(t), newClock(), c.model)
			used, err := s.complete(t.Context(), c.out, "blue", prompt, 99)
			if used != c.used || !errors.Is(err, c.err) {
				t.Errorf("used %d, %v; want %d, %v", used, err, c.used, c.err)
			}
			s.want(t, "blue", float64(c.used), 0)
		})
	}
}

// TestWhileItStreams the whole reservation counts, and the stream must end before it
// expires.
func TestWhileItStreams(t *testing.T) {
	t.Parallel()
	var s *service
	chunks := 0
	s = newProcess(t, testdb.Migrated.New(t), newClock(), uses(nil, func(ctx context.Context, used int) {
		chunks++
		s.want(t, "blue", 0, 100)
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > ttl {
			t.Errorf("the stream ends at %v, %v", deadline, ok)
		}
	}, 20, 10))
	var answer strings.Builder
	if _, err := s.complete(t.Context(), &answer, "blue", prompt, 99); err != nil || answer.String() != "word word " || chunks != 2 {
		t.Errorf("%q in %d chunks, %v", answer.String(), chunks, err)
	}
}

// TestTheCallerGoesAway in the middle of the stream: the tokens used are still counted,
// although the context has ended.
func TestTheCallerGoesAway(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	model := func(ctx context.Context, _ string, _ int) iter.Seq2[Chunk, error] {
		return func(yield func(Chunk, error) bool) {
			if yield(Chunk{"word", 30}, nil) {
				cancel()
				yield(Chunk{}, ctx.Err())
			}
		}
	}
	s := newProcess(t, testdb.Migrated.New(t), newClock(), model)
	if used, err := s.complete(ctx, io.Discard, "blue", prompt, 99); used != 30 || !errors.Is(err, context.Canceled) {
		t.Errorf("used %d, %v", used, err)
	}
	s.want(t, "blue", 30, 0)
}

// TestDeniedIsNotAsked: a denied prompt is neither sent to the model nor counted.
func TestDeniedIsNotAsked(t *testing.T) {
	t.Parallel()
	c := newClock()
	asked := 0
	s := newProcess(t, testdb.Migrated.New(t), c, func(ctx context.Context, prompt string, n int) iter.Seq2[Chunk, error] {
		asked++
		return uses(nil, nil, n)(ctx, prompt, n)
	})
	denied := func(maxTokens int, want time.Duration) {
		t.Helper()
		var err *limiter.DeniedError
		_, got := s.complete(t.Context(), io.Discard, "blue", prompt, maxTokens)
		if !errors.As(got, &err) || err.Result.RetryAfter != want {
			t.Errorf("%d tokens: %v", maxTokens, got)
		}
	}
	denied(500, limiter.Never)
	if _, err := s.complete(t.Context(), io.Discard, "blue", prompt, 450); err != nil {
		t.Fatal(err)
	}
	denied(50, 12*time.Hour) // until midnight
	if asked != 1 {
		t.Errorf("the model was called %d times", asked)
	}
	s.want(t, "blue", 450, 0)
	if _, err := s.complete(t.Context(), io.Discard, "red", prompt, 450); err != nil { // has a separate budget
		t.Error(err)
	}
	c.move(12 * time.Hour)
	if _, err := s.complete(t.Context(), io.Discard, "blue", prompt, 450); err != nil {
		t.Error(err)
	}
}

func reserve(t *testing.T, s *service, tenant string, units int) limiter.Reservation {
	t.Helper()
	h, err := s.reserve(t.Context(), tenant, prompt, units-1)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestAbandoned: what a dead process had reserved comes back with the next request, from
// the ttl on and not before.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	c, url := newClock(), testdb.Migrated.New(t)
	reserve(t, newProcess(t, url, c, nil), "blue", 450)
	s := newProcess(t, url, c, uses(nil, nil, 40))
	c.move(ttl - time.Microsecond)
	var denied *limiter.DeniedError
	if _, err := s.complete(t.Context(), io.Discard, "blue", prompt, 99); !errors.As(err, &denied) {
		t.Errorf("before the ttl: %v", err)
	}
	s.want(t, "blue", 0, 450)
	c.move(time.Microsecond)
	if _, err := s.complete(t.Context(), io.Discard, "blue", prompt, 99); err != nil {
		t.Errorf("after the ttl: %v", err)
	}
	s.want(t, "blue", 40, 0)
}

// TestLate: an answer that ends after its reservation was given back is recorded, and
// nothing is left if others have used the room.
func TestLate(t *testing.T) {
	t.Parallel()
	c, url := newClock(), testdb.Migrated.New(t)
	s := newProcess(t, url, c, nil)
	late := reserve(t, s, "blue", 450)
	c.move(ttl)
	reserve(t, s, "blue", 400)
	if err := s.finish(t.Context(), late.ID, 300); err != nil {
		t.Error(err)
	}
	s.want(t, "blue", 300, 400)
}

// TestFinishedElsewhere: another process has only the reservation's ID. It may repeat the
// same settlement, but not send another number.
func TestFinishedElsewhere(t *testing.T) {
	t.Parallel()
	c, url := newClock(), testdb.Migrated.New(t)
	here, there := newProcess(t, url, c, nil), newProcess(t, url, c, nil)
	used, failed := reserve(t, here, "blue", 200), reserve(t, here, "blue", 300)
	for range 2 {
		if err := errors.Join(there.finish(t.Context(), used.ID, 120), there.finish(t.Context(), failed.ID, 0)); err != nil {
			t.Error(err)
		}
		here.want(t, "blue", 120, 0)
	}
	for _, err := range []error{
		there.finish(t.Context(), used.ID, 121),
		there.finish(t.Context(), used.ID, 0),
		there.finish(t.Context(), failed.ID, 120),
	} {
		if !errors.Is(err, limiter.ErrReservationEnded) {
			t.Errorf("finished otherwise: %v", err)
		}
	}
	here.want(t, "blue", 120, 0)

	// An answer counts in the day in which it was reserved.
	over := reserve(t, here, "blue", 200)
	c.move(12 * time.Hour)
	if err := there.finish(t.Context(), over.ID, 150); err != nil {
		t.Error(err)
	}
	here.want(t, "blue", 0, 0)
}

// deaf drops the first settlements before they reach the server.
type deaf struct{ times atomic.Int64 }

func (d *deaf) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "Settle") && d.times.Add(-1) >= 0 {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return ended
	}
	return ctx
}

func (d *deaf) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestToldAgain: finish retries while the database does not answer. If it gives up, its
// error says so, and the reservation stays until it expires.
func TestToldAgain(t *testing.T) {
	t.Parallel()
	for times := range int64(tries + 1) {
		d := new(deaf)
		d.times.Store(times)
		s := newProcess(t, testdb.Migrated.New(t), newClock(), uses(nil, nil, 30), func(c *pgxpool.Config) { c.ConnConfig.Tracer = d })
		used, err := s.complete(t.Context(), io.Discard, "blue", prompt, 99)
		if times < tries && (used != 30 || err != nil) || times == tries && !errors.Is(err, limiter.ErrUnavailable) {
			t.Errorf("not reached %d times: used %d, %v", times, used, err)
		}
		if times < tries {
			s.want(t, "blue", 30, 0)
		} else {
			s.want(t, "blue", 0, 100)
		}
	}
}

// TestAllAtOnce: of many simultaneous prompts, only as many stream as the budget can pay
// for; the others are denied.
func TestAllAtOnce(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	decided := make(chan struct{})
	var streaming, denials, answers atomic.Int64
	decide := func(n *atomic.Int64) {
		n.Add(1)
		if answers.Add(1) == 2*12 {
			close(decided)
		}
	}
	model := uses(nil, func(ctx context.Context, _ int) {
		decide(&streaming)
		select {
		case <-decided:
		case <-ctx.Done():
			t.Error("the others were not answered")
		}
	}, 30)
	s := newProcess(t, testdb.Migrated.New(t), newClock(), model)
	var running sync.WaitGroup
	for i := range 2 * 12 {
		running.Go(func() {
			_, err := s.complete(ctx, io.Discard, []string{"blue", "red"}[i%2], prompt, 99)
			var denied *limiter.DeniedError
			if errors.As(err, &denied) {
				decide(&denials)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	if streaming.Load() != 2*5 || denials.Load() != 2*7 {
		t.Errorf("%d streamed and %d were denied, want 10 and 14", streaming.Load(), denials.Load())
	}
	s.want(t, "blue", 5*30, 0)
	s.want(t, "red", 5*30, 0)
}

// TestTenantsAtOnce: three tenants of two processes, with answers of any length and any
// ending. What streams and what was used never exceed a budget, and in the end the spend
// equals the tokens used.
func TestTenantsAtOnce(t *testing.T) {
	t.Parallel()
	ctx, url, c := bounded(t), testdb.Migrated.New(t), newClock()
	var mu sync.Mutex
	atMost, total := map[string]int{}, map[string]int{}
	model := func(_ context.Context, tenant string, maxTokens int) iter.Seq2[Chunk, error] { // the prompt is the tenant
		reserved := estimate(tenant) + maxTokens
		change := func(by int) {
			mu.Lock()
			defer mu.Unlock()
			if atMost[tenant] += by; float64(atMost[tenant]) > budget.Limit {
				t.Errorf("%s may use %d tokens", tenant, atMost[tenant])
			}
		}
		return func(yield func(Chunk, error) bool) {
			used := 0
			change(reserved)
			defer func() { change(used - reserved) }()
			for used < reserved && rand.IntN(4) > 0 {
				used += 1 + rand.IntN(min(10, reserved-used))
				if !yield(Chunk{Used: used}, nil) {
					return
				}
			}
			if rand.IntN(3) == 0 {
				yield(Chunk{}, errModel)
			}
		}
	}
	processes := []*service{newProcess(t, url, c, model), newProcess(t, url, c, model)}
	denials := 0
	var running sync.WaitGroup
	for worker := range 12 {
		running.Go(func() {
			for range 12 {
				tenant := fmt.Sprint("tenant ", rand.IntN(3))
				used, err := processes[worker%2].complete(ctx, io.Discard, tenant, tenant, 10+rand.IntN(150))
				mu.Lock()
				total[tenant] += used
				var denied *limiter.DeniedError
				if errors.As(err, &denied) {
					denials++
				} else if err != nil && !errors.Is(err, errModel) {
					t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	for tenant, used := range total {
		processes[0].want(t, tenant, float64(used), 0)
	}
	if denials == 0 {
		t.Error("no request was denied")
	}
}
