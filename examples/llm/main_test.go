package main

import (
	"context"
	"errors"
	"io"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

func TestMain(m *testing.M) { testdb.Main(m, migrations.Up) }

// prompt is estimated at one token, so an answer of 99 reserves 100.
const prompt = "hi"

// noon is far from the end of a day.
var noon = time.Date(2026, time.March, 15, 12, 0, 0, 0, time.UTC)

// at returns a configuration whose clock shows *now.
func at(now *time.Time) *limiter.Config {
	return &limiter.Config{Now: func() time.Time { return *now }}
}

// newTestService returns a service at noon over a new database.
func newTestService(t *testing.T, model Model) *service {
	return &service{testdb.Limiter(t, testdb.Pool(t, testdb.Migrated), at(&noon)), model}
}

// uses returns a model that uses that many tokens, one chunk after the other, and then
// fails if err is not nil.
func uses(err error, chunks ...int) Model {
	return func(context.Context, string, int) iter.Seq2[Chunk, error] {
		return func(yield func(Chunk, error) bool) {
			used := 0
			for _, n := range chunks {
				if used += n; !yield(Chunk{"word ", used}, nil) {
					return
				}
			}
			if err != nil {
				yield(Chunk{}, err)
			}
		}
	}
}

// want checks a tenant's usage.
func (s *service) want(t *testing.T, tenant string, spent, held float64) {
	t.Helper()
	st, err := s.limits.Usage(context.WithoutCancel(t.Context()), budget, tenant)
	if err != nil || st.Spent != spent || st.Reserved != held {
		t.Errorf("%s: spent %v, held %v, %v; want %v, %v", tenant, st.Spent, st.Reserved, err, spent, held)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	url := testdb.Empty.New(t)
	for range 2 { // and again, on the tables and rows of the first run
		var out strings.Builder
		if err := run(t.Context(), url, at(&noon), &out); err != nil {
			t.Fatal(err)
		}
		testdb.InREADME(t, out.String())
	}
}

// TestHowAnAnswerEnds: however the stream ends, the tokens used are counted and nothing
// stays reserved.
func TestHowAnAnswerEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		model Model
		used  int
		err   error
	}{
		"below":                    {uses(nil, 20, 10), 30, nil},
		"above":                    {uses(nil, 90, 40), 130, nil},
		"failed before anything":   {uses(errModel), 0, errModel},
		"failed in the middle":     {uses(errModel, 20, 10), 30, errModel},
		"failed at the end, above": {uses(errModel, 90, 40), 130, errModel},
		"an empty answer":          {uses(nil), 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestService(t, c.model)
			used, err := s.complete(t.Context(), io.Discard, "blue", prompt, 99)
			if used != c.used || !errors.Is(err, c.err) {
				t.Errorf("used %d, %v; want %d, %v", used, err, c.used, c.err)
			}
			s.want(t, "blue", float64(c.used), 0)
		})
	}
}

// TestTheCallerGoesAway in the middle of the stream: while it streams, the whole reservation
// counts; then the tokens used do, although the context has ended.
func TestTheCallerGoesAway(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := newTestService(t, nil)
	s.model = func(ctx context.Context, _ string, _ int) iter.Seq2[Chunk, error] {
		return func(yield func(Chunk, error) bool) {
			s.want(t, "blue", 0, 100)
			if yield(Chunk{"word", 30}, nil) {
				cancel()
				yield(Chunk{}, ctx.Err())
			}
		}
	}
	if used, err := s.complete(ctx, io.Discard, "blue", prompt, 99); used != 30 || !errors.Is(err, context.Canceled) {
		t.Errorf("used %d, %v", used, err)
	}
	s.want(t, "blue", 30, 0)
}

// TestDeniedIsNotAsked: a denied prompt is neither sent to the model nor counted.
func TestDeniedIsNotAsked(t *testing.T) {
	t.Parallel()
	asked := 0
	s := newTestService(t, func(ctx context.Context, prompt string, n int) iter.Seq2[Chunk, error] {
		asked++
		return uses(nil, n)(ctx, prompt, n)
	})
	if _, err := s.complete(t.Context(), io.Discard, "blue", prompt, 450); err != nil {
		t.Fatal(err)
	}
	_, err := s.complete(t.Context(), io.Discard, "blue", prompt, 50)
	denied, ok := errors.AsType[*limiter.DeniedError](err)
	if !ok || denied.Result.RetryAfter != 12*time.Hour || asked != 1 { // until midnight
		t.Errorf("%v; the model was called %d times", err, asked)
	}
	s.want(t, "blue", 450, 0)
}

// TestFinishedElsewhere: another process has only the reservation's ID. It may repeat the
// same settlement, but not send another number. An answer counts in the day in which it was
// reserved.
func TestFinishedElsewhere(t *testing.T) {
	t.Parallel()
	pool, now := testdb.Pool(t, testdb.Migrated), noon
	here, there := &service{limits: testdb.Limiter(t, pool, at(&now))}, &service{limits: testdb.Limiter(t, pool, at(&now))}
	hold, err := here.reserve(t.Context(), "blue", prompt, 199)
	if err != nil {
		t.Fatal(err)
	}
	here.want(t, "blue", 0, 200)
	for range 2 {
		if err := there.finish(t.Context(), hold.ID, 120); err != nil {
			t.Error(err)
		}
		here.want(t, "blue", 120, 0)
	}
	if err := there.finish(t.Context(), hold.ID, 121); !errors.Is(err, limiter.ErrReservationEnded) {
		t.Errorf("finished otherwise: %v", err)
	}
	over, err := here.reserve(t.Context(), "blue", prompt, 199)
	now = now.Add(12 * time.Hour)
	if err := errors.Join(err, there.finish(t.Context(), over.ID, 150)); err != nil {
		t.Error(err)
	}
	here.want(t, "blue", 0, 0)
}
