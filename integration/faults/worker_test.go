package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// worker is one caller of a client.
type worker struct {
	*scene
	*client
	spent   []grant // a few grants of its own that it may give back
	inTx    bool    // its requests are in transactions
	written bool    // the last transaction wrote its order: it was not there
}

// grant is an answer that was acknowledged.
type grant struct {
	part
	result limiter.Result
	hold   string // its reservation, if it is one
}

// outcome is what a caller knows of its request.
type outcome int

const (
	answered outcome = iota
	refused          // an error that says that nothing was counted
	lost             // it may have been counted
)

// pause is the mean time between two requests of a caller.
const pause = 5 * time.Millisecond

// run does deeds until the load is over.
func (w *worker) run(deeds []deed) {
	for !w.isOver() {
		n := rand.IntN(100)
		for _, d := range deeds {
			if n -= d.percent; n < 0 {
				d.do(w)
				break
			}
		}
		w.let(rand.N(2 * pause))
	}
}

// patiently returns a context for one request, which the caller leaves early if the fault
// says so.
func (w *worker) patiently() (context.Context, context.CancelFunc) {
	d := requestTime
	if leaves := w.leaves.Load(); leaves != nil {
		d = (*leaves)()
	}
	return context.WithTimeout(context.Background(), d)
}

// ask sends a request and returns what became of it.
func (w *worker) ask(what string, request func(context.Context) error) (outcome, error) {
	ctx, cancel := w.patiently()
	defer cancel()
	start := time.Now()
	err := request(ctx)
	w.times.add(start, time.Now(), err == nil)
	return w.assess(what, err), err
}

// assess says what an error means, and reports those that no fault may cause.
func (w *worker) assess(what string, err error) outcome {
	if err == nil {
		return answered
	}
	w.faults.meet(err)
	defer w.let(rand.N(4 * pause)) // while the server is away
	for _, e := range w.fault.expect {
		if errors.Is(err, e) {
			return lost
		}
	}
	switch {
	case errors.Is(err, limiter.ErrInvalid), errors.Is(err, limiter.ErrUnsupported), errors.Is(err, limiter.ErrClosed),
		errors.Is(err, limiter.ErrMisconfigured), errors.Is(err, limiter.ErrReservationEnded), errors.Is(err, limiter.ErrRetryTx):
		w.faults.add("%s over %s: an error that this fault must not cause: %v", what, w.client.over, err)
		return refused
	case errors.Is(err, limiter.ErrNoReservation):
		if !w.books.lossySoFar("budget-") {
			w.faults.add("%s over %s: a reservation was lost: %v", what, w.client.over, err)
		}
		return refused
	case errors.Is(err, limiter.ErrOverloaded), errors.Is(err, limiter.ErrLocked):
		return refused
	case errors.Is(err, limiter.ErrUnavailable):
		if strings.Contains(err.Error(), "circuit breaker") {
			return refused // nothing was sent
		}
		return lost
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return lost
	}
	w.faults.add("%s over %s: an error that the library does not document: %v", what, w.client.over, err)
	return lost
}

// insist repeats a request until it is answered. Use it only for what counts once however
// often it is sent. It gives up a while after the end of the load.
func (w *worker) insist(send func() (outcome, error)) (outcome, error) {
	unknown := false
	var late time.Time
	for {
		o, err := send()
		if o == answered {
			return answered, nil
		}
		if errors.Is(err, limiter.ErrNoReservation) {
			return refused, err // it was lost, and does not come back
		}
		unknown = unknown || o == lost
		if w.isOver() && late.IsZero() {
			late = time.Now().Add(requestTime)
		}
		if !late.IsZero() && time.Now().After(late) {
			if unknown {
				return lost, err
			}
			return refused, err
		}
	}
}

// granted checks the answer to a request for units of a key with plenty of room.
func (w *worker) granted(what string, p limiter.Policy, key string, r limiter.Result, n float64) {
	if !r.Allowed || r.Granted != n || r.Source != limiter.SourceDatabase {
		w.faults.add("%s over %s: %s of %s, %v units of %v: %+v", what, w.client.over, key, p.Name, n, plenty, r)
	}
}
