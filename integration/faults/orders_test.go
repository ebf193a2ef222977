package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

var errCommit = errors.New("no answer to the commit")

// order inserts an order and takes its units in the same transaction. One in six is rolled
// back.
func (w *worker) order() {
	p, key := anyOf(orders, places)
	id, n := w.newID("order"), units()
	at := place{p.Name, key}
	ctx, cancel := w.patiently()
	defer cancel()
	start := time.Now()
	committed, o := w.transact(ctx, func(tx *transaction) error {
		if err := tx.exec(ctx, "INSERT INTO orders (id, policy, key, units) VALUES ($1, $2, $3, $4)", id, p.Name, key, n); err != nil {
			return err
		}
		r, err := tx.AllowN(ctx, p, key, n)
		if err == nil {
			w.granted("AllowN in a transaction", p, key, r, n)
			return nil
		}
		w.assessTx(err)
		return err
	}, rand.IntN(6) > 0)
	w.times.add(start, time.Now(), o == answered)
	switch {
	case o == answered && committed:
		w.ledger.add(change{at: at, least: n, most: n, what: "order", order: id})
	case o == lost:
		w.ledger.add(change{at: at, most: n, what: "order", err: errCommit, order: id})
	}
	if o != answered {
		w.let(rand.N(4 * pause))
	}
}

// transact does work in a transaction. It is lost if the answer to the commit is.
func (w *worker) transact(ctx context.Context, work func(*transaction) error, commit bool) (committed bool, o outcome) {
	tx, err := w.begin(ctx)
	if err != nil {
		return false, refused
	}
	if err := work(tx); err != nil || !commit {
		_ = tx.rollback(context.WithoutCancel(ctx)) // the connection may be gone
		if err != nil {
			return false, refused
		}
		return false, answered
	}
	if err := tx.commit(ctx); err != nil {
		return false, lost
	}
	return true, answered
}

// assessTx reports errors that no fault may cause in a transaction. There each error means
// that the transaction has failed.
func (w *worker) assessTx(err error) {
	if !errors.Is(err, limiter.ErrRetryTx) {
		w.assess("AllowN in a transaction", err)
	}
}
