package limiter

import "sync"

// tally counts what goes on.
type tally struct {
	mu   sync.Mutex
	zero sync.Cond
	n    int
}

func newTally() *tally {
	t := new(tally)
	t.zero.L = &t.mu
	return t
}

func (t *tally) add() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
}

func (t *tally) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 {
		t.zero.Broadcast()
	}
}

// awaitZero waits until nothing goes on, and reports whether that was so before.
func (t *tally) awaitZero() (was bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was = t.n == 0
	for t.n > 0 {
		t.zero.Wait()
	}
	return was
}
