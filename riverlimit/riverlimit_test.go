package riverlimit_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
	"github.com/pglimit/pglimit/riverlimit"
)

var (
	hourly = limiter.Policy{Name: "jobs", Algorithm: limiter.FixedWindow, Limit: 2, Period: time.Hour}
	wide   = limiter.Policy{Name: "wide", Algorithm: limiter.FixedWindow, Limit: 5, Period: time.Hour}
	// a turn in lane comes every hour: the second is too late for a job with a minute's timeout
	lane = limiter.Policy{Name: "lane", Algorithm: limiter.LeakyBucketQueue, Limit: 1, Period: time.Hour, Burst: 2}
)

// memory returns a limiter whose clock stands still. An operator has blocked the key "stopped".
func memory() *limiter.Limiter {
	live, err := policies.New()
	if err == nil {
		_, err = live.Apply(context.Background(), policies.Edit{SetOverrides: []policies.Override{{Policy: hourly.Name, Key: "stopped", Blocked: true}}})
	}
	if err != nil {
		panic(err)
	}
	return limiter.NewMemory(&limiter.Config{Now: at.Now, Policies: live})
}

func fixed(requests ...limiter.Request) riverlimit.Limits {
	return func(context.Context, *rivertype.JobRow) ([]limiter.Request, error) { return requests, nil }
}

// TestWork: a job is worked only if it was granted. Otherwise River gets what to do with it.
func TestWork(t *testing.T) {
	t.Parallel()
	broken := errors.New("no such tenant")
	closed := memory()
	closed.Close()
	minute, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range []struct {
		name   string
		limits riverlimit.Limits
		l      *limiter.Limiter // default: a new one, with "full" used up and "blocked" blocked
		want   error            // nil if the job is worked
	}{
		{"granted", fixed(hourly.Request("k", 1)), nil, nil},
		{"several granted", fixed(hourly.Request("k", 1), wide.Request("k", 1)), nil, nil},
		{"no requests", fixed(), nil, nil},
		{"first in a queue", fixed(lane.Request("k", 1)), nil, nil},
		{"denied", fixed(hourly.Request("full", 1)), nil, &rivertype.JobSnoozeError{Duration: time.Hour}},
		{"one of several denied", fixed(wide.Request("full", 1), hourly.Request("full", 1)), nil, &rivertype.JobSnoozeError{Duration: time.Hour}},
		{"a turn too late", fixed(lane.Request("full", 1)), nil, &rivertype.JobSnoozeError{Duration: time.Hour}},
		{"queue among several", fixed(wide.Request("full", 1), lane.Request("full", 1)), nil, &rivertype.JobSnoozeError{Duration: time.Hour}},
		{"blocked", fixed(hourly.Request("blocked", 1)), nil, &rivertype.JobSnoozeError{Duration: time.Hour}},
		{"blocked without an end", fixed(hourly.Request("stopped", 1)), nil, &rivertype.JobSnoozeError{Duration: time.Hour}},
		{"above the burst", fixed(hourly.Request("k", 3)), nil, rivertype.JobCancel(nil)},
		{"limits fails", func(context.Context, *rivertype.JobRow) ([]limiter.Request, error) { return nil, broken }, nil, broken},
		{"invalid", fixed(hourly.Request("k", 0)), nil, limiter.ErrInvalid},
		{"no decision", fixed(hourly.Request("k", 1)), closed, limiter.ErrClosed},
		{"no decision on several", fixed(hourly.Request("k", 1), wide.Request("k", 1)), closed, limiter.ErrClosed},
	} {
		l := c.l
		if l == nil {
			l = memory()
			for _, r := range []limiter.Request{hourly.Request("full", 2), lane.Request("full", 1)} {
				if r, err := l.Do(t.Context(), r); err != nil || !r.Allowed {
					t.Fatal(r, err)
				}
			}
			if err := l.Block(t.Context(), hourly, "blocked", 365*24*time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		worked := 0
		err := riverlimit.New(l, c.limits).Work(minute, &rivertype.JobRow{ID: 7, Attempt: 1, Kind: "report"}, func(context.Context) error { worked++; return nil })
		if (worked == 1) != (c.want == nil) || !errors.Is(err, c.want) {
			t.Errorf("%s: worked %d times, %v, want %v", c.name, worked, err, c.want)
		}
		// A queue deducts the time that the job can wait.
		want, isSnooze := errors.AsType[*rivertype.JobSnoozeError](c.want)
		if got, ok := errors.AsType[*rivertype.JobSnoozeError](err); ok != isSnooze || ok && (got.Duration > want.Duration || got.Duration < want.Duration-time.Minute) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
		if c.name == "above the burst" && !strings.Contains(err.Error(), "the cost is more than the limit ever allows") {
			t.Errorf("a cancelled job's error is %v", err)
		}
	}
}

// TestWorkCountsEachFetchOnce: a decision that is repeated counts once, and a job that River
// fetches again counts again, also if a snooze by its worker kept the number of the attempt.
func TestWorkCountsEachFetchOnce(t *testing.T) {
	t.Parallel()
	l := memory()
	limit := riverlimit.New(l, riverlimit.Each(riverlimit.Kind, wide))
	first, second := time.UnixMicro(1), time.UnixMicro(2)
	for _, c := range []struct {
		job  rivertype.JobRow
		want float64
	}{
		{rivertype.JobRow{ID: 7, Attempt: 1, AttemptedAt: &first, Kind: "report"}, 1},
		{rivertype.JobRow{ID: 7, Attempt: 1, AttemptedAt: &first, Kind: "report"}, 1},
		{rivertype.JobRow{ID: 7, Attempt: 1, AttemptedAt: &second, Kind: "report"}, 2},
		{rivertype.JobRow{ID: 7, Attempt: 2, AttemptedAt: &second, Kind: "report"}, 3},
		{rivertype.JobRow{ID: 8, Attempt: 1, AttemptedAt: &first, Kind: "report"}, 4},
		{rivertype.JobRow{ID: 9, Attempt: 1, AttemptedAt: &first, Kind: "other"}, 4},
		{rivertype.JobRow{ID: 10, Attempt: 1, Kind: "report"}, 5},
	} {
		if err := limit.Work(t.Context(), &c.job, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if r, err := l.Check(t.Context(), wide, "report", 0); err != nil || r.Level != c.want {
			t.Errorf("after job %d, attempt %d: %v, %v are counted, want %v", c.job.ID, c.job.Attempt, r.Level, err, c.want)
		}
	}

	// limits can choose what counts once, such as a job with all its attempts.
	l = memory()
	request := wide.Request("k", 1)
	request.IdempotencyKey = "job 7"
	for attempt := range 3 {
		if err := riverlimit.New(l, fixed(request)).Work(t.Context(), &rivertype.JobRow{ID: 7, Attempt: attempt}, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
	}
	if r, err := l.Check(t.Context(), wide, "k", 0); err != nil || r.Level != 1 {
		t.Errorf("under one IdempotencyKey %v, %v are counted, want 1", r.Level, err)
	}
}

// TestWorkErrors: the error of a worker is River's, also if it is a denial that the worker got.
func TestWorkErrors(t *testing.T) {
	t.Parallel()
	for _, want := range []error{errors.New("the worker's"), &limiter.DeniedError{Result: limiter.Result{RetryAfter: time.Hour}}} {
		if got := riverlimit.New(memory(), fixed(hourly.Request("k", 1))).Work(t.Context(), &rivertype.JobRow{}, func(context.Context) error { return want }); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	broken := errors.New("no key")
	limits := riverlimit.Each(func(*rivertype.JobRow) (string, error) { return "", broken }, hourly)
	if _, err := limits(t.Context(), &rivertype.JobRow{}); err != broken {
		t.Errorf("the key's error became %v", err)
	}
}

// TestRequired: missing arguments panic when the middleware is made.
func TestRequired(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(){
		"riverlimit: Each: key is nil":        func() { riverlimit.Each(nil, hourly) },
		"riverlimit: Each: no policies":       func() { riverlimit.Each(riverlimit.Kind) },
		"riverlimit: New: the limiter is nil": func() { riverlimit.New(nil, fixed()) },
		"riverlimit: New: limits is nil":      func() { riverlimit.New(memory(), nil) },
	} {
		func() {
			defer func() {
				if got := recover(); got != name {
					t.Errorf("got %v, want %s", got, name)
				}
			}()
			f()
		}()
	}
}

// TestSlots: a job is worked while it holds a slot. Without one it is snoozed, cancelled if it never
// fits, and errors go to River.
func TestSlots(t *testing.T) {
	t.Parallel()
	exports := limiter.Policy{Name: "exports", Algorithm: limiter.Concurrency, Limit: 2, Period: time.Minute}
	l := limiter.NewMemory(nil)
	if err := l.Block(t.Context(), exports, "blocked", 365*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("no such tenant")
	for name, c := range map[string]struct {
		in   limiter.Request
		err  error
		want error // nil if the job is worked
	}{
		"free":            {exports.Request("k", 2), nil, nil},
		"blocked":         {exports.Request("blocked", 1), nil, &rivertype.JobSnoozeError{Duration: time.Hour}},
		"above the limit": {exports.Request("k", 3), nil, rivertype.JobCancel(nil)},
		"invalid":         {exports.Request("k", 0.5), nil, limiter.ErrInvalid},
		"no slot":         {limiter.Request{}, broken, broken},
	} {
		m := riverlimit.Slots(l, func(context.Context, *rivertype.JobRow) (limiter.Request, error) { return c.in, c.err })
		worked := false
		err := m.Work(t.Context(), &rivertype.JobRow{}, func(context.Context) error {
			worked = true
			if u, err := l.Usage(t.Context(), exports, "k"); err != nil || u.Spent != 2 {
				t.Errorf("%s: %+v, %v", name, u, err)
			}
			return nil
		})
		if worked != (c.want == nil) || !errors.Is(err, c.want) {
			t.Errorf("%s: worked %v, %v", name, worked, err)
		}
	}
}
