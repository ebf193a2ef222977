package dashboard

import (
	"context"
	"sync"
	"time"
)

const (
	// rest is how many times as long as an answer took it is given again, so that open
	// pages cost the database at most a tenth of one connection's time for each question.
	rest = 10
	// maxAnswers is how many questions are remembered.
	maxAnswers = 100
)

// memo remembers answers for a while that depends on how long they took. Callers with the
// same question wait for one answer. The zero value is ready to use.
type memo[Q comparable, A any] struct {
	mu      sync.Mutex
	answers map[Q]*answer[A]
}

// answer is one that may not have come yet.
type answer[A any] struct {
	asking chan struct{} // has room for one who asks
	value  A
	until  time.Time // the value may be used; zero: there is none
}

// get returns the answer to q: a remembered one, or that of ask. Errors are not remembered.
func (m *memo[Q, A]) get(ctx context.Context, q Q, ask func(context.Context) (A, error)) (A, error) {
	m.mu.Lock()
	a := m.answers[q]
	if a == nil {
		if len(m.answers) >= maxAnswers || m.answers == nil {
			m.answers = map[Q]*answer[A]{}
		}
		a = &answer[A]{asking: make(chan struct{}, 1)}
		m.answers[q] = a
	}
	m.mu.Unlock()
	select {
	case a.asking <- struct{}{}:
		defer func() { <-a.asking }()
	case <-ctx.Done():
		var none A
		return none, context.Cause(ctx)
	}
	if time.Now().Before(a.until) {
		return a.value, nil
	}
	began := time.Now()
	value, err := ask(ctx)
	if err == nil {
		a.value, a.until = value, time.Now().Add(rest*time.Since(began))
	}
	return value, err
}

// forget makes the next questions be asked.
func (m *memo[Q, A]) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers = nil
}
