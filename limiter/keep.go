package limiter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/store"
)

// Between tries an AcquireWait sleeps for at least shortestPause, then longer and longer, up to
// longestPause: a slot that another process releases is not announced. Up to a quarter is added
// at random, so that processes do not try together.
const shortestPause, longestPause = 50 * time.Millisecond, time.Second

// AcquireWait is DoAcquire that waits until it gets a slot or ctx ends. Within this process
// callers of one key get their turns in the order in which they came, and a Release wakes the
// first. Between processes there is no order. It tries again when the next slot ends, and at the
// latest after a second and a quarter, to find a slot that another process released. So one caller of each
// process and key asks the database.
//
// If the cost is above the Limit, it does not wait: the Result is denied, with RetryAfter Never.
// If ctx ends, it returns its error and holds nothing, unless a statement was in flight: see
// DoAcquire on lost answers.
func (l *Limiter) AcquireWait(ctx context.Context, request Request, ttl time.Duration) (Slot, error) {
	key := queueKey{request.Policy.Name, keys.Stored(request.Key, l.keySecret)}
	mine := l.lines.enter(key)
	defer l.lines.leave(key, mine)
	select {
	case <-mine.turn:
	case <-ctx.Done():
		return Slot{}, store.EndedContext(ctx)
	}
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		slot, err := l.DoAcquire(ctx, request, ttl)
		if err != nil || slot.Result.Allowed || slot.Result.RetryAfter == Never {
			return slot, err
		}
		timer := time.NewTimer(min(slot.Result.RetryAfter, pause+rand.N(pause/4)))
		select {
		case <-timer.C:
		case <-mine.wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return Slot{}, store.EndedContext(ctx)
		}
	}
}

// DoWith runs fn while it holds a slot of one unit under a policy of the algorithm Concurrency,
// and Keep does the rest. If no slot is free, it does not wait: it returns a *DeniedError, and
// fn is not called. Call AcquireWait and Keep to wait, or for another cost.
func (l *Limiter) DoWith(ctx context.Context, p Policy, key string, fn func(ctx context.Context) error) error {
	slot, err := l.Acquire(ctx, p, key)
	if err == nil {
		err = slot.Result.Err()
	}
	if err != nil {
		return err
	}
	return l.Keep(ctx, slot, fn)
}

// Keep runs fn while it keeps a slot, and releases it at the end, also if fn panics. The slot is
// renewed each third of its life. A renewal that fails is tried again.
//
// If the slot could not be renewed, the context of fn ends after nine tenths of the slot's life,
// by this machine's monotonic clock, counted from before the last renewal was sent. So fn has
// the last tenth to stop before others may hold what the slot held. This assumes that clocks run
// at about the same rate and that this process is not stopped: see [Slot.Fence] for what to do
// where that is not enough.
//
// Keep returns fn's error. If the slot was lost meanwhile, by its end, a Reset or another's
// Release, an ErrNoSlot is joined to it, and it is the context's cause. A Slot from another
// process, of which only ID is set, is renewed before fn is called. Close the Limiter after fn
// has returned.
func (l *Limiter) Keep(ctx context.Context, slot Slot, fn func(ctx context.Context) error) (err error) {
	if strings.HasPrefix(slot.ID, "uncounted:") {
		return fn(ctx)
	}
	k := &keeper{l: l, id: slot.ID, span: slot.local}
	if k.sent.IsZero() {
		if _, k.span, err = l.extend(ctx, slot.ID, 0); err != nil {
			return err
		}
	}
	renewal, stop := context.WithCancel(context.WithoutCancel(ctx)) // fn may need the slot to stop
	ctx, k.end = context.WithCancelCause(ctx)
	defer k.end(nil)
	k.late = time.AfterFunc(time.Until(k.deadline()), func() {
		k.lose(fmt.Errorf("%w: it could not be renewed in time", ErrNoSlot))
	})
	var renewing sync.WaitGroup
	renewing.Go(func() { k.renew(renewal) })
	defer func() {
		stop()
		renewing.Wait()
		err = k.release(ctx, err)
	}()
	return fn(ctx)
}

// keeper keeps a slot.
type keeper struct {
	span
	l    *Limiter
	id   string
	end  context.CancelCauseFunc // of fn's context
	late *time.Timer             // loses the slot at the deadline

	mu   sync.Mutex
	lost error
}

// deadline is when fn has to stop.
func (s span) deadline() time.Time { return s.sent.Add(s.life / 10 * 9) }

// lose notes that the slot is lost, and ends fn's context.
func (k *keeper) lose(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost == nil {
		k.lost = err
		k.end(err)
	}
}

// isLost reports whether the slot is lost.
func (k *keeper) isLost() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lost != nil
}

// renew renews the slot until ctx ends or the slot is lost.
func (k *keeper) renew(ctx context.Context) {
	ttl := k.life
	for pause := time.Until(k.sent.Add(ttl / 3)); sleep(ctx, pause) && ctx.Err() == nil && !k.isLost(); {
		in, done := context.WithDeadline(ctx, k.deadline())
		_, renewed, err := k.l.extend(in, k.id, ttl)
		done()
		switch {
		case err == nil:
			k.mu.Lock()
			if k.lost == nil {
				k.span = renewed
				k.late.Reset(time.Until(k.deadline()))
			}
			k.mu.Unlock()
			pause = time.Until(k.sent.Add(ttl / 3))
		case errors.Is(err, ErrNoSlot):
			k.lose(err)
			return
		default:
			pause = ttl / 12
		}
	}
}

// release gives the slot back once fn has returned err.
func (k *keeper) release(ctx context.Context, err error) error {
	k.late.Stop()
	ctx = context.WithoutCancel(ctx)
	if k.l.timeout <= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, longestUndo)
		defer cancel()
	}
	released := k.l.Release(ctx, k.id)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.lost != nil:
		return errors.Join(err, k.lost)
	case errors.Is(released, ErrNoSlot):
		return errors.Join(err, released)
	case released != nil: // it ends by itself
		k.l.logger.WarnContext(ctx, "pglimit: a slot could not be released", "error", released)
	}
	return err
}

// lines are the callers that wait for slots, by key as stored.
type lines struct {
	mu sync.Mutex
	of map[queueKey][]*waiting
}

// waiting is a caller in a line.
type waiting struct {
	turn chan struct{} // closed once it is the first
	wake chan struct{} // gets a value when a slot was released
}

func newLines() *lines { return &lines{of: map[queueKey][]*waiting{}} }

// enter adds a caller to the end of a line.
func (s *lines) enter(key queueKey) *waiting {
	w := &waiting{make(chan struct{}), make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.of[key]) == 0 {
		close(w.turn)
	}
	s.of[queueKey{key.policy, strings.Clone(key.key)}] = append(s.of[key], w)
	return w
}

// leave takes a caller out of a line. If it was the first, it is the turn of the next.
func (s *lines) leave(key queueKey, w *waiting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := s.of[key]
	for i := range line {
		if line[i] != w {
			continue
		}
		line = append(line[:i:i], line[i+1:]...)
		if i == 0 && len(line) > 0 {
			close(line[0].turn)
		}
		break
	}
	if s.of[key] = line; len(line) == 0 {
		delete(s.of, key)
	}
}

// wake lets the first of a line try at once.
func (s *lines) wake(key queueKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if line := s.of[key]; len(line) > 0 {
		select {
		case line[0].wake <- struct{}{}:
		default: // it was woken before
		}
	}
}
