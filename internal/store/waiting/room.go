// Package waiting bounds the callers that wait for the database: how many, how many of
// one key, and for how long. Its Lane has the requests for rows that other transactions
// have locked.
package waiting

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// Slot is a key of one algorithm.
type Slot struct {
	Algorithm   algorithm.Name
	Policy, Key string
}

// SlotOf returns the slot of a query.
func SlotOf(q *store.Query) Slot { return Slot{q.Algorithm, q.Policy, q.Key} }

// database is what a Room knows of the database.
type database interface {
	Refuses() error
	Answers() int64
	Crowded() bool
}

// Room is all callers that wait for the database. It is safe for concurrent use.
type Room struct {
	database
	most, share int64
	timeout     time.Duration
	callers     atomic.Int64

	mu      sync.Mutex
	flights deadlines[*flight]
}

// smallShare is the number of callers of one key that may wait in any case.
const smallShare = 64

// NewRoom returns a Room for so many callers, of which a quarter may wait for one key.
// Each waits for timeout at most, if that is positive.
func NewRoom(most int, timeout time.Duration, d database) *Room {
	share := min(most, max(smallShare, most/4))
	r := &Room{database: d, most: int64(most), share: int64(share), timeout: timeout}
	r.flights.mu = &r.mu
	return r
}

// Callers returns the number of callers that wait now.
func (r *Room) Callers() int { return int(r.callers.Load()) }

// Timeout returns how long a caller waits; it does not end if that is not positive.
func (r *Room) Timeout() time.Duration { return r.timeout }

// Enter admits a caller, or returns an error. ofKey is the number of callers that wait
// for its key. A caller that was admitted calls Exit.
func (r *Room) Enter(ofKey int) error {
	refusal := r.Refuses()
	switch {
	case refusal != nil:
		return refusal
	case int64(ofKey) >= r.share:
		return fmt.Errorf("%w: %d callers wait for this key (a quarter of Config.MaxWaiting)", store.ErrOverloaded, r.share)
	case r.callers.Add(1) > r.most:
		r.callers.Add(-1)
		return fmt.Errorf("%w: %d callers wait for the database (Config.MaxWaiting)", store.ErrOverloaded, r.most)
	}
	return nil
}

// Exit ends a caller's wait.
func (r *Room) Exit() { r.callers.Add(-1) }

// late returns why a request has no answer in time.
func (r *Room) late(t *Ticket) error {
	answers := r.Answers() != t.since
	switch {
	case t.State == Locked:
		return store.ErrLocked
	case t.State == Queued && answers:
		return fmt.Errorf("%w: the request waited behind others and was not sent: %w", store.ErrOverloaded, context.DeadlineExceeded)
	case !answers && r.Crowded() && t.State == Sent && (t.flight == nil || !t.flight.giveUp()):
		return fmt.Errorf("%w: %w: %w", store.ErrUnavailable, store.ErrCrowded, context.DeadlineExceeded)
	case !answers && r.Crowded():
		return fmt.Errorf("%w: %w", store.ErrBusy, context.DeadlineExceeded)
	case answers:
		return fmt.Errorf("%w: %w: %w", store.ErrUnavailable, store.ErrAnswering, context.DeadlineExceeded)
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, context.DeadlineExceeded)
}
