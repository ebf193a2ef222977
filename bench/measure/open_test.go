package measure

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/must"
)

// fakeSleep is for a fake clock, which moves only while all goroutines wait in Go.
func fakeSleep(t time.Time) { time.Sleep(time.Until(t)) }

// TestOpenLoad: with one caller, an answer that takes 100 ms is late for the 99 requests
// that are due meanwhile, one per millisecond, and each is later than those before it by
// nothing less than what it waited.
func TestOpenLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		var keys []string
		s := must.OK(RunOpen(t.Context(), OpenLoad{
			Begin: time.Now().Add(time.Second), Callers: 1, SleepUntil: fakeSleep,
			Stages: []Stage{{PerSecond: 10, Length: 500 * time.Millisecond}, {PerSecond: 1000, Length: time.Second}},
			Keys:   []string{"a", "b"}, Sequence: []uint32{0, 1, 1},
			Decide: func(_ context.Context, key string) (float64, error) {
				n++
				if keys = append(keys, key); n == 5+500 {
					time.Sleep(100 * time.Millisecond)
				}
				return 1, nil
			},
		}))(t)
		if s[0].Decisions != 5 || s[1].Decisions != 1000 {
			t.Errorf("%d and %d requests, want 5 and 1,000", s[0].Decisions, s[1].Decisions)
		}
		if s[0].P99 > time.Microsecond {
			t.Errorf("before, p99 is %v; want none", s[0].P99)
		}
		// A hundred are late, by 100, 99, 98 and so on milliseconds.
		for _, q := range []struct {
			name      string
			got, want time.Duration
		}{{"p50", s[1].P50, 0}, {"p99", s[1].P99, 90 * time.Millisecond}, {"p99.9", s[1].P999, 99 * time.Millisecond}, {"late", s[1].Late, 0}} {
			if off := q.got - q.want; off.Abs() > 2*time.Millisecond {
				t.Errorf("%s is %v, want %v", q.name, q.got, q.want)
			}
		}
		if !slices.Equal(keys[:4], []string{"a", "b", "b", "a"}) {
			t.Errorf("the keys were %v", keys[:4])
		}
	})
}

// TestOpenLoadHasManyInFlight: slow answers delay no others while callers are left, and the
// clock does not wait for them.
func TestOpenLoadHasManyInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var mu sync.Mutex
		var asked []time.Duration
		s := must.OK(RunOpen(t.Context(), OpenLoad{
			Begin: begin, Callers: 50, Stages: []Stage{{1000, 100 * time.Millisecond}}, SleepUntil: fakeSleep,
			Keys: []string{"a"}, Sequence: []uint32{0},
			Decide: func(context.Context, string) (float64, error) {
				mu.Lock()
				asked = append(asked, time.Since(begin))
				mu.Unlock()
				time.Sleep(49 * time.Millisecond)
				return 1, nil
			},
		}))(t)
		if s[0].P999 < 49*time.Millisecond || s[0].P999 > 50*time.Millisecond {
			t.Errorf("p99.9 is %v, want 49 ms", s[0].P999)
		}
		for i, at := range asked {
			if at != time.Duration(i)*time.Millisecond {
				t.Fatalf("request %d was sent after %v", i, at)
			}
		}
	})
}

func TestSleepUntil(t *testing.T) {
	until := time.Now().Add(5 * time.Millisecond)
	sleepUntil(until)
	if early := time.Until(until); early > 0 {
		t.Errorf("it woke %v too early", early)
	}
	sleepUntil(until) // in the past: returns at once
}
