package limiter

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// TxBeginner begins transactions of pgx, for RunTx. *pgxpool.Pool, *pgxpool.Conn and
// *pgx.Conn are such.
type TxBeginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// SQLTxBeginner begins transactions of database/sql, for RunSQLTx. *sql.DB and *sql.Conn
// are such.
type SQLTxBeginner interface {
	BeginTx(ctx context.Context, options *sql.TxOptions) (*sql.Tx, error)
}

// TxOptions are the options of RunTx. A nil *TxOptions and the zero value have the
// defaults.
type TxOptions struct {
	// TxOptions are for BeginTx. Default: the database's isolation level, read and write.
	pgx.TxOptions
	// Attempts is the largest number of times that the transaction is run. Default: 5. 1
	// never runs it again. A negative number is ErrInvalid.
	Attempts int
}

// SQLTxOptions are the options of RunSQLTx. A nil *SQLTxOptions and the zero value have
// the defaults.
type SQLTxOptions struct {
	// TxOptions are for BeginTx. Default: the driver's isolation level, read and write.
	sql.TxOptions
	// Attempts is as in TxOptions.
	Attempts int
}

const (
	defaultAttempts = 5
	// The longest wait after the first attempt. It doubles with each attempt.
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = time.Second
	// rollbackTimeout bounds a rollback, also after the end of the caller's context.
	rollbackTimeout = 5 * time.Second
)

// RunTx runs work in a transaction of db and commits it, and runs all of it again after a
// conflict with another transaction. limits is l.InTx(tx). A nil options means the
// defaults.
//
// Like pgx.BeginTxFunc it is a function, not a method: the transaction is that of the
// database, and l only decides in it.
//
//	err := limiter.RunTx(ctx, l, pool, nil, func(tx pgx.Tx, limits *limiter.Tx) error {
//		if _, err := tx.Exec(ctx, "INSERT INTO orders …"); err != nil {
//			return err
//		}
//		r, err := limits.AllowN(ctx, budget, account, cents)
//		if err != nil {
//			return err
//		}
//		return r.Err() // a denial rolls the order back
//	})
//
// If work returns an error, RunTx rolls back and returns that error. So a denial rolls
// back if work returns its Err. A denial that work does not return commits,
// with the block that it may have started. If work panics, RunTx rolls back, and the
// panic goes on. work must not end tx.
//
// RunTx runs the transaction again if the error of work, or that of the commit, is
// ErrRetryTx or has SQLSTATE 40001, 40P01 or 55P03, from limits or from another statement.
//
//   - So work may run several times. It must have no effect outside the transaction, and
//     should set the variables that it leaves for its caller in each run.
//   - Before each further attempt RunTx waits for a random time, of at most 10ms after the
//     first attempt and twice as long after each other one, but at most 1s.
//   - After the last of the attempts the error is an ErrRetryTx.
//   - If ctx ends during a wait, the error has ctx's error and that of the last attempt.
//   - 55P03 is also the error of SELECT … FOR UPDATE NOWAIT. Return another error from work
//     to not run it again.
//
// The errors of BeginTx are returned as they are. So are those of the commit if it has
// rolled back, such as that of a deferred constraint. If work ignores the error of a failed
// statement, the commit rolls back and its error is pgx.ErrTxCommitRollback. If ctx ends
// before the commit, RunTx rolls back and returns ctx's error. If no answer to the commit
// came, the error is ErrCommitUnknown, and the transaction is not run again.
func RunTx(ctx context.Context, l *Limiter, db TxBeginner, options *TxOptions, work func(tx pgx.Tx, limits *Tx) error) error {
	if err := checkRun(l == nil, db == nil, work == nil); err != nil {
		return err
	}
	var o TxOptions
	if options != nil {
		o = *options
	}
	return runTx(ctx, o.Attempts, func() (transaction, func() error, error) {
		tx, err := db.BeginTx(ctx, o.TxOptions)
		return tx, func() error { return work(tx, l.InTx(tx)) }, err
	})
}

// RunSQLTx is RunTx for database/sql. limits is l.InSQLTx(tx). What it does with errors is
// the same, except for those of a commit after work has ignored the error of a failed
// statement: pgx's driver returns pgx.ErrTxCommitRollback, and the errors of other drivers
// that have no SQLSTATE are ErrCommitUnknown.
func RunSQLTx(ctx context.Context, l *Limiter, db SQLTxBeginner, options *SQLTxOptions, work func(tx *sql.Tx, limits *Tx) error) error {
	if err := checkRun(l == nil, db == nil, work == nil); err != nil {
		return err
	}
	var o SQLTxOptions
	if options != nil {
		o = *options
	}
	return runTx(ctx, o.Attempts, func() (transaction, func() error, error) {
		tx, err := db.BeginTx(ctx, &o.TxOptions)
		return sqlTransaction{tx}, func() error { return work(tx, l.InSQLTx(tx)) }, err
	})
}

func checkRun(noLimiter, noDB, noWork bool) error {
	switch {
	case noLimiter:
		return store.Invalid("l", "nil", "make one with New, NewSQL or NewMemory")
	case noDB:
		return store.Invalid("db", "nil", "pass the pool that begins the transactions")
	case noWork:
		return store.Invalid("work", "nil", "pass the function to run in the transaction")
	}
	return nil
}

// transaction ends a transaction of pgx or database/sql.
type transaction interface {
	Commit(context.Context) error
	Rollback(context.Context) error
}

type sqlTransaction struct{ tx *sql.Tx }

func (t sqlTransaction) Commit(context.Context) error   { return t.tx.Commit() }
func (t sqlTransaction) Rollback(context.Context) error { return t.tx.Rollback() }

// runTx runs transactions until one meets no conflict: at most attempts, or defaultAttempts
// for 0. begin begins one and returns its work.
func runTx(ctx context.Context, attempts int, begin func() (transaction, func() error, error)) error {
	switch {
	case attempts < 0:
		return store.Invalid("Attempts", strconv.Itoa(attempts), "must not be negative; 0 means 5, and 1 never runs the transaction again")
	case attempts == 0:
		attempts = defaultAttempts
	}
	for n := 1; ; n++ {
		again, err := runTxOnce(ctx, begin)
		switch {
		case !again:
			return err
		case n == attempts && errors.Is(err, store.ErrRetryTx):
			return fmt.Errorf("pglimit: attempt %d, the last: %w", n, err)
		case n == attempts:
			return fmt.Errorf("%w: attempt %d, the last: %w", store.ErrRetryTx, n, err)
		case !sleep(ctx, backoff(n)):
			return fmt.Errorf("%w before the transaction was run again; the last attempt: %w", store.EndedContext(ctx), err)
		}
	}
}

// backoff returns a random time to wait after the n-th attempt.
func backoff(n int) time.Duration {
	most := maxBackoff
	if n < 8 { // no more doublings fit below
		most = min(most, firstBackoff<<(n-1))
	}
	return 1 + rand.N(most)
}

// runTxOnce runs one transaction. again reports that it was rolled back because of a
// conflict.
func runTxOnce(ctx context.Context, begin func() (transaction, func() error, error)) (again bool, err error) {
	tx, work, err := begin()
	if err != nil {
		return false, err
	}
	committed := false
	defer func() { // also if work panics or calls runtime.Goexit
		if !committed {
			rollback(ctx, tx)
		}
	}()
	if err := work(); err != nil {
		return errors.Is(err, store.ErrRetryTx) || exec.IsConflict(err), err
	}
	if ctx.Err() != nil {
		return false, store.EndedContext(ctx)
	}
	err = tx.Commit(ctx)
	committed = err == nil
	switch {
	case committed:
		return false, nil
	case exec.IsConflict(err):
		return true, err
	case errors.Is(err, sql.ErrTxDone) && ctx.Err() != nil: // database/sql has rolled back
		return false, store.EndedContext(ctx)
	case errors.Is(err, sql.ErrTxDone), errors.Is(err, pgx.ErrTxClosed):
		return false, fmt.Errorf("pglimit: the transaction was ended by its work, which must leave that to RunTx: %w", err)
	case didRollBack(err):
		return false, err
	}
	return false, fmt.Errorf("%w: %w", store.ErrCommitUnknown, err)
}

// rollback rolls back even if ctx has ended. Its error is not reported: the transaction's
// first error is, and the connection is closed.
func rollback(ctx context.Context, tx transaction) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// didRollBack reports whether the error of a commit means that it did not commit: the
// server answered so, or the commit was not sent, after which the connection is closed.
func didRollBack(err error) bool {
	if code := exec.SQLState(err); code != "" {
		return !exec.LosesAnswer(code)
	}
	return errors.Is(err, pgx.ErrTxCommitRollback) || pgconn.SafeToRetry(err)
}
