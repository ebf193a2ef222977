package dashboard

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestMemo: an answer is used again for ten times as long as it took, callers with one
// question wait for one answer, and errors are not remembered.
func TestMemo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m memo[string, int]
		asked := map[string]int{}
		var fails error
		get := func(ctx context.Context, q string) (int, error) {
			return m.get(ctx, q, func(context.Context) (int, error) {
				time.Sleep(time.Second)
				asked[q]++
				return asked[q], fails
			})
		}
		expect := func(q string, want int) {
			t.Helper()
			if got, err := get(t.Context(), q); err != nil || got != want {
				t.Errorf("%s: %d, %v; want %d", q, got, err, want)
			}
		}
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { expect("a", 1) })
		}
		all.Wait()
		expect("b", 1)
		expect("a", 1)
		time.Sleep(10*time.Second - time.Millisecond)
		expect("b", 1)
		expect("a", 2)
		m.forget()
		expect("a", 3)
		fails = errors.New("down")
		time.Sleep(11 * time.Second)
		for range 2 {
			if _, err := get(t.Context(), "a"); !errors.Is(err, fails) {
				t.Errorf("an error: %v", err)
			}
		}
		fails = nil
		expect("a", 6)
		for range 2 * maxAnswers { // the room is bounded
			expect(string(rune('c'+len(asked))), 1)
		}
		if n := len(m.answers); n > maxAnswers {
			t.Errorf("%d answers are remembered", n)
		}
	})
}

// TestMemoLeave: a caller that waits for another's answer leaves when its context ends.
func TestMemoLeave(t *testing.T) {
	t.Parallel()
	var m memo[string, int]
	asking, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = m.get(t.Context(), "q", func(context.Context) (int, error) { asking <- struct{}{}; <-asking; return 1, nil })
	}()
	<-asking
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.get(ctx, "q", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	asking <- struct{}{}
	<-done
}
