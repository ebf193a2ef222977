package places

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const second = time.Second

// in returns a place that begins seconds from now.
func in(seconds float64, width time.Duration) Place {
	return Place{From: time.Now().Add(time.Duration(seconds * float64(second))), Width: width}
}

func TestTake(t *testing.T) {
	type taken struct {
		width time.Duration
		by    float64 // seconds
		at    float64 // seconds; negative: nothing
	}
	for name, c := range map[string]struct {
		given []Place // From is measured from the zero time
		after float64
		taken []taken
	}{
		"none":                 {nil, 0, []taken{{second, 10, -1}}},
		"the same":             {[]Place{at(1, second)}, 0, []taken{{second, 10, 1}, {second, 10, -1}}},
		"the earliest first":   {[]Place{at(3, second), at(1, second), at(2, second)}, 0, []taken{{second, 9, 1}, {second, 9, 2}, {second, 9, 3}, {second, 9, -1}}},
		"too late":             {[]Place{at(3, second)}, 0, []taken{{second, 2.9, -1}, {second, 3, 3}}},
		"has begun":            {[]Place{at(1, second)}, 1.5, []taken{{second, 10, -1}, {second / 2, 10, 1.5}}},
		"has passed":           {[]Place{at(1, second)}, 2, []taken{{second, 10, -1}, {1, 10, -1}}},
		"a larger one":         {[]Place{at(1, second)}, 0, []taken{{2 * second, 10, -1}}},
		"parts of one":         {[]Place{at(1, 3*second)}, 0, []taken{{second, 9, 1}, {2 * second, 9, 2}, {1, 9, -1}}},
		"two together":         {[]Place{at(1, second), at(2, second)}, 0, []taken{{2 * second, 9, 1}, {1, 9, -1}}},
		"with a gap":           {[]Place{at(1, second), at(2.1, second)}, 0, []taken{{2 * second, 9, -1}, {second, 9, 1}, {second, 9, 2.1}}},
		"behind a gap":         {[]Place{at(1, second), at(2.5, second), at(3.5, second)}, 0, []taken{{2 * second, 9, 2.5}, {second, 9, 1}}},
		"three, one has begun": {[]Place{at(1, second), at(2, second), at(3, second)}, 1.5, []taken{{2 * second, 9, 1.5}, {second / 2, 9, 3.5}, {1, 9, -1}}},
		"no width":             {[]Place{at(1, 0), at(2, -second)}, 0, []taken{{0, 9, -1}, {-second, 9, -1}, {1, 9, -1}}},
		"too long":             {[]Place{at(1, Longest+1)}, 0, []taken{{1, 9, -1}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, start := New[string](100), time.Now()
			for _, g := range c.given {
				l.Put("q", Place{start.Add(g.From.Sub(time.Time{})), g.Width})
			}
			time.Sleep(time.Duration(c.after * float64(second)))
			for i, w := range c.taken {
				got, ok := l.Take("q", w.width, start.Add(time.Duration(w.by*float64(second))))
				if ok != (w.at >= 0) || ok && (got.Width != w.width || got.From.Sub(start) != time.Duration(w.at*float64(second))) {
					t.Errorf("%s, %d: got %v after %v, %v; want %v", name, i, got.Width, got.From.Sub(start), ok, w)
				}
				if _, other := l.Take("other", w.width, start.Add(time.Hour)); other {
					t.Errorf("%s: a place of another queue", name)
				}
			}
		})
	}
}

// at returns a place that begins seconds after the zero time.
func at(seconds float64, width time.Duration) Place {
	return Place{From: time.Time{}.Add(time.Duration(seconds * float64(second))), Width: width}
}

// TestTakeUsesNothingTwice: whatever is given back and taken again in random order and
// widths, two places in use never overlap.
func TestTakeUsesNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(200) {
			random := rand.New(rand.NewPCG(seed, 3))
			l := New[int](1000)
			var used []Place
			for i := range 40 { // one after the other, as a queue gives them
				used = append(used, in(float64(i)/10, second/10))
			}
			takes := 0
			for range 200 {
				if len(used) > 0 && random.IntN(2) == 0 {
					i := random.IntN(len(used))
					l.Put(0, used[i])
					used = slices.Delete(used, i, i+1)
				} else if got, ok := l.Take(0, time.Duration(1+random.Int64N(int64(second/4))), time.Now().Add(time.Minute)); ok {
					if got.From.Before(time.Now()) {
						t.Fatalf("seed %d: a place that has passed", seed)
					}
					takes++
					used = append(used, got)
				}
				slices.SortFunc(used, func(a, b Place) int { return a.From.Compare(b.From) })
				for i := 1; i < len(used); i++ {
					if used[i].From.Before(used[i-1].From.Add(used[i-1].Width)) {
						t.Fatalf("seed %d: %v and %v overlap", seed, used[i-1], used[i])
					}
				}
				time.Sleep(time.Duration(random.Int64N(int64(5 * time.Millisecond))))
			}
			if takes < 10 {
				t.Errorf("seed %d: took %d", seed, takes)
			}
		}
	})
}

// TestPutBounded: the number of places is bounded over all queues, and those that have
// passed make room.
func TestPutBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[int](10)
		time.Sleep(2 * sweepEvery)
		for i := range 100 {
			l.Put(i, in(1, second))
		}
		if l.Len() != 10 {
			t.Errorf("%d places", l.Len())
		}
		time.Sleep(2 * second)
		for i := range 5 {
			l.Put(i, in(1, second))
		}
		if l.Len() != 5 {
			t.Errorf("%d places after the others had passed", l.Len())
		}
		l.Drop(3)
		if _, ok := l.Take(3, second, time.Now().Add(time.Hour)); ok || l.Len() != 4 {
			t.Errorf("%d places after a Drop", l.Len())
		}
	})
}

// TestPlacesConcurrent runs all methods at once, for the race detector.
func TestPlacesConcurrent(t *testing.T) {
	l := New[int](100)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 500 {
				l.Put(j%3, in(float64(j)/100, second))
				l.Take(i%3, second, time.Now().Add(time.Hour))
				if j%50 == 0 {
					l.Drop(i % 3)
				}
			}
		})
	}
	all.Wait()
	for i := range 3 {
		l.Drop(i)
	}
	if l.Len() != 0 {
		t.Errorf("%d places", l.Len())
	}
}
