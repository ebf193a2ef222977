package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// An application inserts orders in the transactions that take their units. So a key of these
// policies counts the units of its orders, at any moment and whatever the callers know.

// ending is how a transaction is to end.
type ending int

const (
	toCommit ending = iota
	toRollBack
	toFail  // by a statement that fails
	toLeave // by the end of its context, at any step
)

func anyEnding() ending {
	switch n := rand.IntN(20); {
	case n < 16:
		return toCommit
	case n < 18:
		return toRollBack
	case n < 19:
		return toFail
	}
	return toLeave
}

// bought is a caller's order.
type bought struct {
	id      string
	request limiter.Request
	hold    string // its open reservation, if it has one
}

const insertOrder = "INSERT INTO orders (id, policy, key, units) VALUES ($1, $2, $3, $4) ON CONFLICT (id) DO NOTHING"

// order inserts an order and takes its units, or reserves them.
func (w *worker) order() {
	p, key := anyOf(orders, places)
	b := bought{id: w.newID("order"), request: p.Request(key, units())}
	reserves := reservable(p, key) && rand.IntN(3) == 0
	e := w.books.begin("order", "", part{p, key, b.request.Cost, b.id})
	o, err := w.transact(anyEnding(), func(ctx context.Context, tx *transaction) error {
		if _, err := tx.exec(ctx, insertOrder, b.id, p.Name, key, b.request.Cost); err != nil {
			return err
		}
		var r limiter.Reservation
		var err error
		if reserves {
			r, err = tx.Reserve(ctx, b.request, time.Hour)
		} else {
			r.Result, err = tx.Do(ctx, b.request)
		}
		if b.hold = r.ID; err == nil {
			w.granted("in a transaction", p, key, r.Result, b.request.Cost)
		}
		return w.assessTx(ctx, err)
	})
	if e.end(o, err); o == answered && p.Algorithm != limiter.LeakyBucketQueue && len(w.bought) < 20 {
		w.bought = append(w.bought, b)
	}
}

// orderTogether inserts two orders and takes the units of both at once.
func (w *worker) orderTogether() {
	p, k := anyOf(orders, places)
	q, j := anyOf(orders, places)
	if p == q && k == j {
		return
	}
	requests := []limiter.Request{p.Request(k, units()), q.Request(j, units())}
	ids := []string{w.newID("order"), w.newID("order")}
	e := w.books.begin("orders together", "", part{p, k, requests[0].Cost, ids[0]}, part{q, j, requests[1].Cost, ids[1]})
	e.end(w.transact(anyEnding(), func(ctx context.Context, tx *transaction) error {
		for i, r := range requests {
			if _, err := tx.exec(ctx, insertOrder, ids[i], r.Policy.Name, r.Key, r.Cost); err != nil {
				return err
			}
		}
		all, err := tx.AllowAll(ctx, requests...)
		for i, r := range requests {
			if err == nil {
				w.granted("AllowAll in a transaction", r.Policy, r.Key, all.PerRequest[i], r.Cost)
			}
		}
		return w.assessTx(ctx, err)
	}))
}

// orderOnce is an order whose number is the idempotency key. It is sent again until its
// outcome is known.
func (w *worker) orderOnce() {
	p, key := anyOf(orders, places)
	id, request := w.newID("once"), p.Request(key, units())
	request.IdempotencyKey = id
	e := w.books.begin("order, idempotent", "", part{p, key, request.Cost, id})
	o, err := refused, error(nil)
	for unknown := false; o != answered && !w.isOver(); {
		o, err = w.transact(toCommit, func(ctx context.Context, tx *transaction) error {
			n, err := tx.exec(ctx, insertOrder, id, p.Name, key, request.Cost)
			if err != nil {
				return err
			}
			r, err := tx.Do(ctx, request)
			if err == nil && r.Replayed == (n == 1) {
				w.faults.add("%s: %d rows were inserted, and the answer is %+v", id, n, r)
			}
			return w.assessTx(ctx, err)
		})
		if unknown = unknown || o == lost; unknown && o == refused {
			o = lost
		}
	}
	e.end(o, err)
}

// endOrder settles or cancels an earlier order's reservation, or takes the order back.
func (w *worker) endOrder() {
	if len(w.bought) == 0 {
		w.order()
		return
	}
	b := w.bought[0]
	w.bought = w.bought[1:]
	p, key, spent := b.request.Policy, b.request.Key, 0.0
	switch {
	case b.hold != "":
		spent = float64(rand.IntN(int(b.request.Cost) + 3))
	case p.Algorithm == limiter.SlidingWindowLog && reservable(p, key):
		return // a refund takes the newest entries, and so what a reservation would give back
	}
	e := w.books.begin("end of an order", "", part{p, key, spent - b.request.Cost, ""})
	e.end(w.transact(anyEnding(), func(ctx context.Context, tx *transaction) error {
		n, err := tx.exec(ctx, "UPDATE orders SET units = $2 WHERE id = $1", b.id, spent)
		switch {
		case err != nil:
			return err
		case n == 0:
			return errGone // judge reports it, unless the fault may lose it
		case b.hold == "":
			_, err = tx.Refund(ctx, p, key, b.request.Cost)
		case spent == 0:
			err = tx.Cancel(ctx, b.hold)
		default:
			_, err = tx.Settle(ctx, b.hold, spent)
		}
		return w.assessTx(ctx, err)
	}))
}

var (
	errGone   = errors.New("the order is gone")
	errFailed = errors.New("a statement failed")
)

// transact does work in a transaction. It is lost if the answer to the commit is.
func (w *worker) transact(end ending, work func(context.Context, *transaction) error) (o outcome, err error) {
	ctx, cancel := w.patiently()
	defer cancel()
	if end == toLeave {
		var leave context.CancelFunc
		ctx, leave = context.WithTimeout(ctx, rand.N(6*time.Millisecond))
		defer leave()
	}
	start := time.Now()
	defer func() {
		if end == toCommit || end == toRollBack {
			w.times.add(start, time.Now(), err == nil)
		}
		if err != nil {
			w.let(rand.N(4 * pause)) // while the server is away
		}
	}()
	tx, err := w.begin(ctx)
	if err != nil {
		return refused, err
	}
	if err = work(ctx, tx); err != nil || end == toRollBack {
		_ = tx.rollback(context.WithoutCancel(ctx)) // the connection may be gone
		return refused, err
	}
	if end == toFail {
		_, _ = tx.exec(ctx, "SELECT 1/0")
		if tx.commit(ctx) == nil {
			w.faults.add("a transaction that had failed was committed")
		}
		return refused, errFailed
	}
	if err := tx.commit(ctx); err != nil {
		return lost, err
	}
	return answered, nil
}

// assessTx reports an answer that no fault may cause in a transaction. There each error means
// that the transaction has failed.
func (w *worker) assessTx(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil && !errors.Is(err, limiter.ErrRetryTx) {
		w.assess("in a transaction", err)
	}
	return err
}

// unequal lists the keys that count other units than their orders have, as of one snapshot.
const unequal = `
	SELECT format('%s of %s: %s units are counted, and its orders have %s', key, policy, coalesce(level, 0), coalesce(units, 0))
	FROM (` + counts + `) AS counted
	FULL JOIN (SELECT policy, key, sum(units) AS units FROM orders GROUP BY policy, key) AS written USING (policy, key)
	WHERE policy LIKE 'orders-%' AND abs(coalesce(level, 0) - coalesce(units, 0)) > 0.001`

// audit expects that limits and orders agree.
func (s *scene) audit(ctx context.Context, t *testing.T, when string) {
	t.Helper()
	rows, err := s.pool.Query(ctx, unequal)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found[:min(5, len(found))] {
		t.Errorf("%s: %s", when, f)
	}
}

// judgeOrders also looks for each order that was acknowledged.
func (s *scene) judgeOrders(t *testing.T) {
	t.Helper()
	s.audit(t.Context(), t, "at the end")
	kept, _ := s.books.orders()
	if missing := s.missing(t, kept); len(missing) > 0 {
		t.Errorf("%d orders were acknowledged and are lost, such as %s", len(missing), missing[0])
	}
}

// missing returns those of some orders that are not there.
func (s *scene) missing(t *testing.T, orders []string) []string {
	t.Helper()
	rows, err := s.pool.Query(t.Context(), "SELECT id FROM unnest($1::text[]) AS told (id) WHERE NOT EXISTS (SELECT 1 FROM orders WHERE orders.id = told.id)", orders)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// noDeadlock expects that no two transactions of the load waited for each other. A server
// that was killed has counted none before.
func noDeadlock(t *testing.T, s *scene) {
	n := bed.Value[int](t, s.pool, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
	if n > 0 {
		t.Errorf("the server ended %d deadlocks", n)
	}
}
