package limiter

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/store/memory"
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

// keyOf returns a key of that many bytes, inside a larger text.
func keyOf(size, i int) string { return fmt.Sprintf("%0*d%01000d", size, i, 0)[:size] }

// TestDenyCacheSize: a remembered denial takes about 750 bytes and the length of its key,
// and there are no more than DenyCacheKeys.
func TestDenyCacheSize(t *testing.T) {
	const most = 8192
	for _, size := range []int{16, maxKey} {
		model := memory.New()
		l := newInMemory(model, nil)
		before := heap()
		denied, err := newDenials(most, time.Hour, func() int64 { return 1 })
		if err != nil {
			t.Fatal(err)
		}
		l.denied = denied
		p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 1, Period: time.Hour}
		for i := range 2 * most {
			key := keyOf(size, i)
			for range 2 {
				if _, err := l.Allow(context.Background(), p, key); err != nil {
					t.Fatal(err)
				}
			}
			s := p.Request(key, 1)
			if r, _, known := denied.lookup(&s); !known || r.Allowed {
				t.Fatalf("key %d: the denial was not remembered: %+v", i, r)
			}
			l.denied = nil // Reset would forget the denial
			if err := l.Reset(context.Background(), p, key); err != nil {
				t.Fatal(err)
			}
			l.denied = denied
		}
		each := (heap() - before) / most
		t.Logf("keys of %d bytes: %d bytes each", size, each)
		if extra := each - size; extra < 600 || extra > 900 {
			t.Errorf("keys of %d bytes: a denial takes %d, want about 750 and the key's length", size, each)
		}
		if denied.Cache.Len() != most {
			t.Errorf("%d denials are kept", denied.Cache.Len())
		}
		runtime.KeepAlive(l)
	}
}

// TestMaxKeysSize: a key in memory takes about 400 bytes and its length, and the text that
// it was a part of is not kept.
func TestMaxKeysSize(t *testing.T) {
	const many = 10_000
	for _, a := range Algorithms() {
		for _, size := range []int{16, maxKey} {
			l := NewMemory(nil)
			before := heap()
			p := Policy{Name: "p", Algorithm: a, Limit: 10, Period: time.Hour}
			for i := range many {
				if _, err := l.Allow(context.Background(), p, keyOf(size, i)); err != nil {
					t.Fatal(err)
				}
			}
			each := (heap() - before) / many
			t.Logf("%s, keys of %d bytes: %d bytes each", a, size, each)
			if extra := each - size; extra < 200 || extra > 500 {
				t.Errorf("%s, keys of %d bytes: a key takes %d, want about 400 and its length", a, size, each)
			}
			runtime.KeepAlive(l)
		}
	}
}
