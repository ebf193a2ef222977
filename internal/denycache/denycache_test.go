package denycache

import (
	"fmt"
	"sync"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

func cache(t *testing.T, keys int) *Cache[string, int] {
	t.Helper()
	c := must.OK(New[string, int](keys))(t)
	return c
}

// TestKeepAndForget: a kept value is found until it is forgotten.
func TestKeepAndForget(t *testing.T) {
	c := cache(t, 2)
	c.Keep(c.Begin("a"), "a", 1)
	if v, ok := c.Lookup("a"); !ok || v != 1 {
		t.Errorf("got %v, %v", v, ok)
	}
	c.Forget("a")
	if _, ok := c.Lookup("a"); ok {
		t.Error("it was not forgotten")
	}
}

// TestKeepNotAfterForget: a decision is not kept if its key was forgotten meanwhile.
func TestKeepNotAfterForget(t *testing.T) {
	c := cache(t, 2)
	a := c.Begin("a")
	c.Forget("a")
	c.Keep(a, "a", 1)
	if _, ok := c.Lookup("a"); ok {
		t.Error("it was kept")
	}
	if (Attempt{}).Valid() || !c.Begin("a").Valid() {
		t.Error("Valid is wrong")
	}
}

// TestKeepMakesRoom: the least recently used key is evicted.
func TestKeepMakesRoom(t *testing.T) {
	c := cache(t, 2)
	for _, k := range []string{"a", "b"} {
		c.Keep(c.Begin(k), k, 1)
	}
	c.Lookup("a")
	c.Keep(c.Begin("c"), "c", 1)
	if _, ok := c.Lookup("b"); ok {
		t.Error("b is still there")
	}
	if _, ok := c.Lookup("a"); !ok {
		t.Error("a has gone")
	}
}

// TestForgetWhileKeeping: while goroutines keep and forget, none finds a value that was
// decided before the last Forget.
func TestForgetWhileKeeping(t *testing.T) {
	c := cache(t, 100)
	var mu sync.Mutex
	var value [10]int // what a decision would be now
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 5000 {
				n := (g + i) % 10
				k := fmt.Sprint(n)
				if i%7 == 0 {
					mu.Lock()
					value[n]++
					mu.Unlock()
					c.Forget(k)
					continue
				}
				a := c.Begin(k)
				mu.Lock()
				v := value[n]
				mu.Unlock()
				c.Keep(a, k, v)
			}
		})
	}
	wg.Wait()
	for n := range value {
		if v, ok := c.Lookup(fmt.Sprint(n)); ok && v != value[n] {
			t.Errorf("%d is remembered as of %d, and is %d", n, v, value[n])
		}
	}
}

func TestNewRefusesNoKeys(t *testing.T) {
	if _, err := New[string, int](0); err == nil {
		t.Error("a cache of no keys")
	}
}
