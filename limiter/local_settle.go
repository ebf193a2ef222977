package limiter

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

const (
	// mostAtOnce is the largest number of charges at the same time.
	mostAtOnce = 64
	// longestSettling bounds the charges of Close.
	longestSettling = 5 * time.Second
)

// answered is called after the database has answered.
func (l *local) answered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.owed) == 0 {
		l.reset()
		return
	}
	select {
	case l.woken <- struct{}{}:
	default:
	}
}

// owe adds units that were granted here to what is owed for a key; fewer than 0 were given back.
func (e *engine) owe(p *Policy, q *store.Query, units float64) {
	l, k := e.local, keyOfQuery(q)
	d := l.owed[k]
	switch {
	case d == nil && units <= 0:
		return
	case d == nil:
		k.key = strings.Clone(k.key) // it may be a part of a large text
		d = new(debt)
		l.owed[k] = d
	}
	d.policy, d.query = *p, *q
	d.query.Key = k.key
	d.units = max(0, d.units+units)
	if !l.settling {
		l.settling = true
		e.withdrawals.add() // Close waits for it
		go e.settleLocal()
	}
}

// settleLocal charges what is owed, until nothing is or the limiter is closed.
func (e *engine) settleLocal() {
	defer e.withdrawals.done()
	l := e.local
	for open := true; open; {
		ctx, cancel := context.Background(), func() {}
		timer := time.NewTimer(l.every)
		select {
		case <-timer.C:
		case <-l.woken:
		case <-l.closing:
			open = false
			ctx, cancel = context.WithTimeout(ctx, longestSettling)
		}
		timer.Stop()
		err := e.chargeAll(ctx)
		cancel()
		l.mu.Lock()
		left := len(l.owed)
		l.settling = open && left > 0
		l.mu.Unlock()
		switch {
		case left == 0:
			return
		case !open:
			e.logger.Warn("pglimit: closed before the database had what was granted without it", "keys", left, "error", err)
		}
	}
}

// chargeAll charges what is owed for each key. It reads one first: a charge that a database
// receives while it does not answer may count in addition to the next.
func (e *engine) chargeAll(ctx context.Context) (err error) {
	due := e.local.due()
	if len(due) > 0 {
		read := store.Op{Kind: store.Get, Query: due[0]}
		read.Now = e.now()
		err = e.sendBounded(ctx, &read)
	}
	for batch := range slices.Chunk(due, mostAtOnce) {
		if err != nil {
			break
		}
		errs := make([]error, len(batch))
		var charging sync.WaitGroup
		for i := range batch {
			charging.Go(func() { errs[i] = e.chargeOwed(ctx, keyOfQuery(&batch[i])) })
		}
		charging.Wait()
		for _, failed := range errs {
			if err == nil && !errors.Is(failed, store.ErrLocked) {
				err = failed
			}
		}
	}
	return err
}

// due returns a query of each key for which something is owed, and forgets all others.
func (l *local) due() (keys []store.Query) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, d := range l.owed {
		op := store.Op{Kind: store.Get, Query: d.query}
		op.Now = l.now()
		if err := l.memory.Do(context.Background(), &op); err == nil {
			d.units = min(d.units, op.Outcome.View.Level(&op.Rules, op.Outcome.UpdatedAt))
		}
		if d.units < leastCost(d.policy.burst()) {
			delete(l.owed, k)
		} else {
			keys = append(keys, d.query)
		}
	}
	return keys
}

// chargeOwed charges what is owed for a key. Without an answer the units are owed again, so
// that they are counted at least once.
func (e *engine) chargeOwed(ctx context.Context, k localKey) error {
	l := e.local
	l.mu.Lock()
	d := l.owed[k]
	c := e.call(verbCharge, d.policy.Request("k", d.units))
	d.units = 0
	l.mu.Unlock()

	err := e.compile(c)
	if c.op.Key = k.key; err == nil {
		err = e.sendBounded(ctx, &c.op)
	}
	l.mu.Lock()
	switch {
	case err != nil && !errors.Is(err, store.ErrInvalid):
		d.units += c.request.Cost
	case d.units == 0:
		delete(l.owed, k)
	}
	l.mu.Unlock()
	if err == nil {
		l.learn(&c.op.Query, &c.op.Outcome)
		e.put(c)
	}
	return err
}
