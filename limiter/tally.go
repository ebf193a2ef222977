package limiter

import "sync"

// tally counts what goes on.
type tally struct {
	mu    sync.Mutex
	ended sync.Cond
	n     int
}

func newTally() *tally {
	t := new(tally)
	t.ended.L = &t.mu
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
		t.ended.Broadcast()
	}
}

// zero reports whether nothing goes on.
func (t *tally) zero() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n == 0
}

// awaitZero waits until nothing goes on.
func (t *tally) awaitZero() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.n > 0 {
		t.ended.Wait()
	}
}
