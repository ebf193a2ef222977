package measure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/bench/proc"
	"github.com/pglimit/pglimit/internal/must"
)

// TestRunRecordsAfterTheWarmup runs with a fake clock: every decision takes a millisecond,
// except in the warm-up, where they are slow.
func TestRunRecordsAfterTheWarmup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers = 4
		begin := time.Now()
		asked := map[string]*atomic.Int64{"a": {}, "b": {}}
		s := must.OK(Run(t.Context(), Load{
			Callers: callers, Warmup: 10500 * time.Microsecond, Duration: 100 * time.Millisecond,
			Keys: []string{"a", "b"}, Sequence: []uint32{0, 1, 1, 1},
			Decide: func(_ context.Context, key string) (float64, error) {
				takes := time.Millisecond
				if time.Since(begin) < 10*time.Millisecond {
					takes = 5 * time.Millisecond
				}
				<-time.After(takes)
				asked[key].Add(1)
				return 1, nil
			},
		}))(t)
		if s.Decisions != callers*100 || s.PerSecond() != callers*1000 {
			t.Errorf("%d decisions, %v per second; want %d and %d", s.Decisions, s.PerSecond(), callers*100, callers*1000)
		}
		for name, d := range map[string]time.Duration{"p50": s.P50, "p99": s.P99, "p99.9": s.P999} {
			if d < 990*time.Microsecond || d > 1010*time.Microsecond {
				t.Errorf("%s is %v, want 1 ms to within 1 %%", name, d)
			}
		}
		if a, all := asked["a"].Load(), asked["a"].Load()+asked["b"].Load(); s.First != float64(a) || s.Units != float64(all) {
			t.Errorf("%v units, %v for the first key; want %d and %d", s.Units, s.First, all, a)
		}
		// Each caller starts elsewhere in the sequence: the four are always at all four
		// places of it.
		if a, b := asked["a"].Load(), asked["b"].Load(); b != 3*a {
			t.Errorf("%d requests for a and %d for b, want three times as many", a, b)
		}
	})
}

// TestRunKeepsARate: callers wait for their turns, which is no part of a time, and catch up
// when they are late by less than a second.
func TestRunKeepsARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		s := must.OK(Run(t.Context(), Load{
			Callers: 4, PerSecond: 1000, Warmup: 3 * time.Second, Duration: time.Second - time.Microsecond,
			Keys: []string{"a"}, Sequence: []uint32{0},
			Decide: func(context.Context, string) (float64, error) {
				if now := time.Since(begin); now < time.Second {
					time.Sleep(1500 * time.Millisecond)
				}
				time.Sleep(time.Microsecond)
				return 1, nil
			},
		}))(t)
		// Of the first 1,500 requests, half a second's were left out.
		if s.Decisions != 1000 || s.P99 > 2*time.Microsecond || s.Units < 3496 || s.Units > 3516 {
			t.Errorf("%d decisions, p99 %v, %v units; want 1,000, 1 µs, 3,500", s.Decisions, s.P99, s.Units)
		}
	})
}

// TestProcessorTime runs with a fake clock: four callers make 4,000 decisions a second, each
// of which costs the client 25 µs and the server 125. To read the server's time takes long,
// at first longer than later, and costs the client much.
func TestProcessorTime(t *testing.T) {
	run := func(t *testing.T, client, server proc.Clock, decided func()) (Sample, error) {
		return Run(t.Context(), Load{
			Callers: 4, Warmup: 10500 * time.Microsecond, Duration: 400 * time.Millisecond,
			Keys: []string{"a"}, Sequence: []uint32{0},
			Client: client, Server: server,
			Decide: func(context.Context, string) (float64, error) {
				<-time.After(time.Millisecond)
				decided()
				return 1, nil
			},
		})
	}
	synctest.Test(t, func(t *testing.T) {
		var decisions, reading atomic.Int64
		client := func() (time.Duration, error) {
			return time.Hour + time.Duration(decisions.Load()*25_000+reading.Load()), nil
		}
		takes := 100 * time.Millisecond
		server := func() (time.Duration, error) {
			time.Sleep(takes / 2)
			used := time.Hour + time.Duration(decisions.Load()*125_000)
			time.Sleep(takes / 2)
			takes /= 5
			reading.Add(int64(50 * time.Millisecond))
			return used, nil
		}
		s := must.OK(run(t, client, server, func() { decisions.Add(1) }))(t)
		const whole = 0.01 // a decision's time counts at its end
		if s.Decisions != 1600 || math.Abs(s.Client/25_000-1) > whole || math.Abs(s.Server/125_000-1) > whole {
			t.Errorf("%d decisions of %v + %v ns, want 1,600 of 25,000 + 125,000", s.Decisions, s.Client, s.Server)
		}
		unsupported := func() (time.Duration, error) { return 0, fmt.Errorf("here: %w", errors.ErrUnsupported) }
		if s, err := run(t, nil, unsupported, func() {}); err != nil || s.Client != Unknown || s.Server != Unknown {
			t.Errorf("%v + %v ns, %v; want both unknown", s.Client, s.Server, err)
		}
		gone := errors.New("no such process")
		if _, err := run(t, client, func() (time.Duration, error) { return 0, gone }, func() {}); !errors.Is(err, gone) {
			t.Errorf("the server has gone: %v", err)
		}
	})
}

// TestLoadsFailWithADecision: an error or a denial ends a load at once.
func TestLoadsFailWithADecision(t *testing.T) {
	type decide = func(context.Context, string) (float64, error)
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		units float64
		err   error
	}{"error": {1, broken}, "denial": {0, nil}} {
		for kind, run := range map[string]func(context.Context, decide) error{
			"closed": func(ctx context.Context, d decide) error {
				_, err := Run(ctx, Load{Callers: 3, Warmup: time.Hour, Keys: []string{"a"}, Sequence: []uint32{0}, Decide: d})
				return err
			},
			"open": func(ctx context.Context, d decide) error {
				_, err := RunOpen(ctx, OpenLoad{
					Begin: time.Now(), Callers: 2, Stages: []Stage{{100, time.Hour}}, SleepUntil: fakeSleep,
					Keys: []string{"a"}, Sequence: []uint32{0}, Decide: d,
				})
				return err
			},
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					begin := time.Now()
					var calls atomic.Int64
					err := run(t.Context(), func(ctx context.Context, _ string) (float64, error) {
						select {
						case <-time.After(time.Millisecond):
						case <-ctx.Done():
							return 0, ctx.Err()
						}
						if calls.Add(1) == 100 {
							return c.units, c.err
						}
						return 1, nil
					})
					if err == nil || c.err != nil && !errors.Is(err, c.err) {
						t.Errorf("%v, want what one of the decisions said", err)
					}
					if after := time.Since(begin); after > 2*time.Second {
						t.Errorf("it went on for %v", after)
					}
				})
			})
		}
	}
}

func TestAskingAllocatesNothing(t *testing.T) {
	var phase atomic.Int32
	phase.Store(recording)
	c := &caller{times: newHistogram()}
	calls := 0
	l := Load{Callers: 1, Keys: []string{"a"}, Sequence: []uint32{0}, Decide: func(context.Context, string) (float64, error) {
		if calls++; calls%1000 == 0 {
			phase.Store(stopping)
		}
		return 1, nil
	}}
	allocs := testing.AllocsPerRun(10, func() {
		phase.Store(recording)
		must.Succeed(t, c.ask(t.Context(), &l, &phase))
	})
	if allocs != 0 {
		t.Errorf("1,000 requests allocate %v times, want 0: they would be reported as the contender's", allocs)
	}
}

func TestSequences(t *testing.T) {
	const n = 1000
	for name, c := range map[string]struct {
		sequence    []uint32
		least, most float64 // the share of key 0
	}{
		"evenly": {Evenly(n, 1), 0.0007, 0.0013},
		"Zipf":   {Zipf(n), 0.10, 0.25},
	} {
		counts := make([]int, n)
		for _, k := range c.sequence {
			counts[k]++ // and k is below n
		}
		if share := float64(counts[0]) / float64(len(c.sequence)); share < c.least || share > c.most {
			t.Errorf("%s: key 0 is in %v of all requests, want %v to %v", name, share, c.least, c.most)
		}
		if slices.Contains(counts, 0) {
			t.Errorf("%s: a key is never requested", name)
		}
	}
	if keys := Keys(n); keys[7] != "user:000007" || len(keys) != n {
		t.Errorf("Keys: %d of them, such as %q", len(keys), keys[7])
	}
}
