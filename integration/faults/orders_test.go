package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
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

// The statements that write a request's order.
const (
	insertOrder = "INSERT INTO orders (id, policy, key, units) VALUES ($1, $2, $3, $4) ON CONFLICT (id, key) DO NOTHING"
	changeOrder = "UPDATE orders SET units = units + $4 WHERE id = $1 AND policy = $2 AND key = $3"
)

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
	rows := must.OK(s.pool.Query(ctx, unequal))(t)
	found := must.OK(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
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
	rows := must.OK(s.pool.Query(t.Context(), "SELECT id FROM unnest($1::text[]) AS told (id) EXCEPT SELECT id FROM orders", orders))(t)
	all := must.OK(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	return all
}

// noDeadlock expects that no two transactions of the load waited for each other. A server
// that was killed has counted none before.
func noDeadlock(t *testing.T, s *scene) {
	n := testworld.Value[int](t, s.pool, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
	if n > 0 {
		t.Errorf("the server ended %d deadlocks", n)
	}
}
