package spend

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// fate is how a transaction is to end.
type fate int

const (
	toCommit fate = iota
	toRollBack
	toFail   // by a failing statement
	toCancel // by the end of its context, at any point
	toLose   // by a commit whose answer is lost
)

func anyFate() fate {
	switch n := rand.IntN(100); {
	case n < 70:
		return toCommit
	case n < 80:
		return toRollBack
	case n < 90:
		return toFail
	}
	return toCancel
}

// ending is how a transaction has ended.
type ending int

const (
	spendRolledBack ending = iota
	spendCommitted
	spendUnknown // the answer to the commit was lost
)

// spendTx is a transaction of pgx or of database/sql.
type spendTx struct {
	*limiter.Tx
	exec  func(ctx context.Context, sql string, args ...any) error
	read  func(ctx context.Context, into []any, sql string, args ...any) error
	close func(ctx context.Context, commit bool) error
}

func (w *spendWorker) begin(ctx context.Context) (*spendTx, error) {
	if chance(30) {
		tx, err := w.db.BeginTx(ctx, nil)
		if err != nil {
			return nil, err
		}
		return &spendTx{
			Tx: w.limiter.InSQLTx(tx),
			exec: func(ctx context.Context, sql string, args ...any) error {
				_, err := tx.ExecContext(ctx, sql, args...)
				return err
			},
			read: func(ctx context.Context, into []any, sql string, args ...any) error {
				return tx.QueryRowContext(ctx, sql, args...).Scan(into...)
			},
			close: func(_ context.Context, commit bool) error {
				if commit {
					return tx.Commit()
				}
				return tx.Rollback()
			},
		}, nil
	}
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &spendTx{
		Tx: w.limiter.InTx(tx),
		exec: func(ctx context.Context, sql string, args ...any) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		},
		read: func(ctx context.Context, into []any, sql string, args ...any) error {
			return tx.QueryRow(ctx, sql, args...).Scan(into...)
		},
		close: func(ctx context.Context, commit bool) error {
			if commit {
				return tx.Commit(ctx)
			}
			return tx.Rollback(ctx)
		},
	}, nil
}

// transact does work in a transaction, which is rolled back if work returns false.
func (w *spendWorker) transact(f fate, work func(ctx context.Context, tx *spendTx) (keep bool, err error)) ending {
	outer, cancel := patiently()
	defer cancel()
	ctx := outer
	if f == toCancel {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(outer, rand.N(6*time.Millisecond))
		defer cancel()
	}
	w.count("transactions")
	tx, err := w.begin(ctx)
	if err != nil {
		w.lost(ctx, "begin", err)
		return spendRolledBack
	}
	keep, err := work(ctx, tx)
	switch {
	case err != nil:
		_ = tx.close(outer, false) // the connection may be gone
		w.lost(ctx, "in a transaction", err)
	case !keep || f == toRollBack:
		if err := tx.close(outer, false); err != nil {
			w.lost(ctx, "roll back", err)
		}
		w.count("rolled back by choice")
	case f == toFail:
		_ = tx.exec(ctx, "SELECT 1/0")
		if tx.close(ctx, true) == nil {
			w.fault("a transaction that had failed was committed")
		}
		w.count("rolled back by an error")
	default:
		err := tx.close(ctx, true)
		if err == nil && f != toLose {
			w.count("committed")
			return spendCommitted
		}
		if err != nil {
			w.lost(ctx, "commit", err)
		}
		w.count("unknown outcomes")
		return spendUnknown
	}
	return spendRolledBack
}

// lost handles an error that ended an operation; while the server is away it waits.
func (w *spendWorker) lost(ctx context.Context, what string, err error) {
	switch {
	case context.Cause(ctx) == errStuck:
		w.fault("%s: %v: %v", what, errStuck, err)
	case ctx.Err() != nil:
		w.count("ended by a context")
	default:
		w.judge(what, err)
		w.shaken = true
		rest(spendRest)
	}
}

// insist repeats a request until it is answered. Use it only for what can be repeated.
func (w *spendWorker) insist(what string, request func(context.Context) error) {
	for first := true; ; first = false {
		ctx, cancel := patiently()
		if first && chance(15) { // do not wait for the answer
			cancel()
			ctx, cancel = context.WithTimeout(context.Background(), rand.N(4*time.Millisecond))
		}
		err := request(ctx)
		if err == nil {
			cancel()
			return
		}
		w.lost(ctx, what, err)
		w.count("sent again")
		cancel()
	}
}
