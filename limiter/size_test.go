package limiter

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store/memory"
	"github.com/pglimit/pglimit/internal/valid"
)

// These tests hold the sizes that the comments of Config state. They
// do not run in parallel: the heap is the whole process's.

// heap returns the bytes in use.
func heap() int {
	runtime.GC()
	runtime.GC() // the first leaves what has finalizers and what pools keep
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// keyOf returns a key of size bytes, inside a larger text.
func keyOf(size, i int) string { return fmt.Sprintf("%0*d%01000d", size, i, 0)[:size] }

// TestDenyCacheSize: a remembered denial takes about 900 bytes and the length of its key,
// and there are no more than DenyCacheKeys.
func TestDenyCacheSize(t *testing.T) {
	const most = 8192
	for _, size := range []int{16, valid.MaxKey} {
		denied := must.OK(newDenials(most, time.Hour, func() int64 { return 1 }))(t)
		l := newInMemory(memory.NewBounded(1), &Config{})
		before := heap()
		p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 1, Period: time.Hour}
		for i := range 2 * most {
			key := keyOf(size, i)
			l.denied = denied
			for range 2 {
				must.OK(l.Allow(t.Context(), p, key))(t)
			}
			if r, _, known := denied.lookup(&Request{Policy: p, Key: key, Cost: 1}); !known || r.Allowed {
				t.Fatalf("key %d: the denial was not remembered: %+v", i, r)
			}
			l.denied = nil // Reset would forget the denial
			must.Succeed(t, l.Reset(t.Context(), p, key))
		}
		checkSize(t, "a denial", size, before, most, 600, 950)
		if denied.Cache.Len() != most {
			t.Errorf("%d denials are kept", denied.Cache.Len())
		}
	}
}

// TestMaxKeysSize: a key in memory takes about 400 bytes and its length, and the text that
// it was a part of is not kept.
func TestMaxKeysSize(t *testing.T) {
	const many = 10_000
	for _, a := range Algorithms() {
		for _, size := range []int{16, valid.MaxKey} {
			l := NewMemory(nil)
			before := heap()
			p := Policy{Name: "p", Algorithm: a, Limit: 10, Period: time.Hour}
			for i := range many {
				must.OK(l.Allow(t.Context(), p, keyOf(size, i)))(t)
			}
			checkSize(t, string(a), size, before, many, 200, 500)
			runtime.KeepAlive(l)
		}
	}
}

// checkSize expects that each of n keys of size bytes takes from least to most bytes more
// than that.
func checkSize(t *testing.T, what string, size, before, n, least, most int) {
	t.Helper()
	if extra := (heap()-before)/n - size; extra < least || extra > most {
		t.Errorf("%s, keys of %d bytes: %d bytes and the key, want %d to %d", what, size, extra, least, most)
	}
}
