package limiter_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/limiter"
)

var perHour = limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour}

// beginMemory begins a transaction, which ends with the test.
func beginMemory(t *testing.T, db *limiter.MemoryDB) pgx.Tx {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// level returns the units in use that a Decider sees.
func level(t *testing.T, d limiter.Decider, key string) float64 {
	t.Helper()
	r, err := d.Check(t.Context(), perHour, key, 0)
	if err != nil {
		t.Fatal(err)
	}
	return r.Level
}

func allow(t *testing.T, d limiter.Decider, key string) {
	t.Helper()
	if r, err := d.Allow(t.Context(), perHour, key); err != nil || !r.Allowed {
		t.Fatalf("%s: %+v, %v", key, r, err)
	}
}

// TestMemoryDBLocksKeys: others that change a key wait until the transaction ends; reads
// and other keys do not.
func TestMemoryDBLocksKeys(t *testing.T) {
	changes := map[string]func(ctx context.Context, d limiter.Decider, id string) error{
		"do": func(ctx context.Context, d limiter.Decider, _ string) error {
			_, err := d.Allow(ctx, perHour, "k")
			return err
		},
		"all": func(ctx context.Context, d limiter.Decider, _ string) error {
			_, err := d.AllowAll(ctx, perHour.Request("a", 1), perHour.Request("k", 1))
			return err
		},
		"upto": func(ctx context.Context, d limiter.Decider, _ string) error {
			_, err := d.AllowUpTo(ctx, perHour, "k", 3)
			return err
		},
		"charge": func(ctx context.Context, d limiter.Decider, _ string) error {
			_, err := d.Charge(ctx, perHour, "k", 1)
			return err
		},
		"refund": func(ctx context.Context, d limiter.Decider, _ string) error {
			_, err := d.Refund(ctx, perHour, "k", 1)
			return err
		},
		"reserve": func(ctx context.Context, d limiter.Decider, _ string) error {
			_, err := d.Reserve(ctx, perHour.Request("k", 1), time.Minute)
			return err
		},
		"settle": func(ctx context.Context, d limiter.Decider, id string) error {
			_, err := d.Settle(ctx, id, 1)
			return err
		},
		"cancel": func(ctx context.Context, d limiter.Decider, id string) error { return d.Cancel(ctx, id) },
		"block": func(ctx context.Context, d limiter.Decider, _ string) error {
			return d.Block(ctx, perHour, "k", time.Minute)
		},
		"unblock": func(ctx context.Context, d limiter.Decider, _ string) error { return d.Unblock(ctx, perHour, "k") },
		"reset":   func(ctx context.Context, d limiter.Decider, _ string) error { return d.Reset(ctx, perHour, "k") },
	}
	for name, change := range changes {
		for _, inTx := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				l := limiter.NewMemory(nil)
				db := &limiter.MemoryDB{Limiter: l}
				reservation, err := l.Reserve(t.Context(), perHour.Request("k", 2), time.Hour)
				if err != nil {
					t.Fatal(err)
				}
				holds := beginMemory(t, db)
				allow(t, l.InTx(holds), "k")
				if in, out := level(t, l.InTx(holds), "k"), level(t, l, "k"); in != 3 || out != 2 {
					t.Errorf("%s: the transaction sees %v, others %v, want 3 and 2", name, in, out)
				}
				allow(t, l, "other")

				other := limiter.Decider(l)
				var tx pgx.Tx
				if inTx {
					tx = beginMemory(t, db)
					other = l.InTx(tx)
				}
				done := make(chan error, 1)
				go func() { done <- change(t.Context(), other, reservation.ID) }()
				synctest.Wait()
				select {
				case err := <-done:
					t.Errorf("%s, in a transaction %v: it did not wait: %v", name, inTx, err)
				default:
				}
				if err := holds.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Errorf("%s, in a transaction %v: %v", name, inTx, err)
				}
			})
		}
	}
}

// TestMemoryDBLockedForLong: a limiter waits for its Timeout, and a transaction for its
// context, after which it has failed.
func TestMemoryDBLockedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.NewMemory(&limiter.Config{Timeout: 3 * time.Second})
		db := &limiter.MemoryDB{Limiter: l}
		holds := beginMemory(t, db)
		allow(t, l.InTx(holds), "k")
		start := time.Now()
		if _, err := l.Allow(t.Context(), perHour, "k"); !errors.Is(err, limiter.ErrLocked) || time.Since(start) != 3*time.Second {
			t.Errorf("%v after %v, want ErrLocked after 3s", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		waits := beginMemory(t, db)
		allow(t, l.InTx(waits), "other")
		start = time.Now()
		if _, err := l.InTx(waits).Allow(ctx, perHour, "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Hour {
			t.Errorf("%v after %v, want the context's end after an hour", err, time.Since(start))
		}
		if _, err := l.InTx(waits).Allow(t.Context(), perHour, "other"); !errors.Is(err, limiter.ErrUnavailable) {
			t.Errorf("after it has failed: %v", err)
		}
		if err := waits.Commit(t.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) {
			t.Errorf("the commit of a failed transaction: %v", err)
		}
		if got := level(t, l, "other"); got != 0 {
			t.Errorf("a failed transaction left %v", got)
		}
	})
}

// TestMemoryDBDeadlock: the one that closes the circle gets ErrRetryTx, with PostgreSQL's
// SQLSTATE, and both end well under RunTx.
func TestMemoryDBDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.NewMemory(nil)
		db := &limiter.MemoryDB{Limiter: l}
		var runs atomic.Int64
		run := func(keys ...string) error {
			return limiter.RunTx(t.Context(), l, db, nil, func(_ pgx.Tx, limits *limiter.Tx) error {
				runs.Add(1)
				for _, key := range keys {
					_, err := limits.Allow(t.Context(), perHour, key)
					var state interface{ SQLState() string }
					if err != nil && (!errors.Is(err, limiter.ErrRetryTx) || !errors.As(err, &state) || state.SQLState() != "40P01") {
						t.Errorf("got %v", err)
					}
					if err != nil {
						return err
					}
					time.Sleep(time.Second)
				}
				return nil
			})
		}
		errs := make(chan error, 1)
		go func() { errs <- run("a", "b", "c") }()
		time.Sleep(time.Millisecond)
		if err := errors.Join(run("b", "a", "c"), <-errs); err != nil {
			t.Error(err)
		}
		if a, b := level(t, l, "a"), level(t, l, "b"); a != 2 || b != 2 || runs.Load() != 3 {
			t.Errorf("%v and %v units after %d runs, want 2 and 2 after 3", a, b, runs.Load())
		}
	})
}

// TestMemoryDBSavepoints: what was locked since is free after a rollback, and a failed
// savepoint's transaction can go on.
func TestMemoryDBSavepoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.NewMemory(nil)
		db := &limiter.MemoryDB{Limiter: l}
		tx := beginMemory(t, db)
		allow(t, l.InTx(tx), "a")
		point, err := tx.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		allow(t, l.InTx(point), "a")
		allow(t, l.InTx(point), "b")
		other := beginMemory(t, db)
		allow(t, l.InTx(other), "c")
		go func() { _, _ = l.InTx(other).Allow(t.Context(), perHour, "a") }() // until tx ends
		synctest.Wait()
		if _, err := l.InTx(point).Allow(t.Context(), perHour, "c"); !errors.Is(err, limiter.ErrRetryTx) {
			t.Errorf("a deadlock: %v", err)
		}
		if err := point.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		allow(t, l, "b") // not locked any more
		allow(t, l.InTx(tx), "a")
		if _, err := l.InTx(point).Allow(t.Context(), perHour, "a"); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("in a savepoint that has ended: %v", err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := other.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a, b, c := level(t, l, "a"), level(t, l, "b"), level(t, l, "c"); a != 3 || b != 1 || c != 1 {
			t.Errorf("%v, %v and %v units, want 3, 1 and 1", a, b, c)
		}
	})
}

// TestMemoryDBEnds: after the end nothing works, and a second end is an error.
func TestMemoryDBEnds(t *testing.T) {
	l := limiter.NewMemory(nil)
	db := &limiter.MemoryDB{Limiter: l}
	for _, commit := range []bool{false, true} {
		tx := beginMemory(t, db)
		point, err := tx.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if commit {
			err = tx.Commit(t.Context())
		} else {
			err = tx.Rollback(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, ended := range []pgx.Tx{tx, point} {
			if _, err := l.InTx(ended).Allow(t.Context(), perHour, "k"); !errors.Is(err, pgx.ErrTxClosed) || !errors.Is(err, limiter.ErrUnavailable) {
				t.Errorf("Allow: %v", err)
			}
			_, begins := ended.Begin(t.Context())
			_, execs := ended.Exec(t.Context(), "SELECT 1")
			for name, err := range map[string]error{"Commit": ended.Commit(t.Context()), "Rollback": ended.Rollback(t.Context()), "Begin": begins, "Exec": execs} {
				if !errors.Is(err, pgx.ErrTxClosed) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
}

// TestMemoryDBRefuses: limiters over a database, others' transactions, and statements
// without a database.
func TestMemoryDBRefuses(t *testing.T) {
	l := limiter.NewMemory(nil)
	tx := beginMemory(t, &limiter.MemoryDB{Limiter: l})
	for name, other := range map[string]*limiter.Tx{
		"of another limiter": limiter.NewMemory(nil).InTx(tx),
		"no transaction":     l.InTx(nil),
		"of database/sql":    l.InSQLTx(nil),
	} {
		if _, err := other.Allow(t.Context(), perHour, "k"); !errors.Is(err, limiter.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (&limiter.MemoryDB{}).Begin(t.Context()); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("without a limiter: %v", err)
	}
	_, exec := tx.Exec(t.Context(), "SELECT 1")
	_, query := tx.Query(t.Context(), "SELECT 1")
	_, copied := tx.CopyFrom(t.Context(), pgx.Identifier{"t"}, nil, nil)
	_, prepare := tx.Prepare(t.Context(), "", "SELECT 1")
	_, batch := tx.SendBatch(t.Context(), &pgx.Batch{}).Exec()
	for i, err := range []error{exec, query, copied, prepare, batch, tx.QueryRow(t.Context(), "SELECT 1").Scan()} {
		if !errors.Is(err, limiter.ErrUnsupported) {
			t.Errorf("statement %d: %v", i, err)
		}
	}
	allow(t, l.InTx(tx), "k") // none of that has failed the transaction
	invalid := limiter.NewMemory(&limiter.Config{MaxKeys: -1})
	if _, err := invalid.InTx(beginMemory(t, &limiter.MemoryDB{Limiter: invalid})).Allow(t.Context(), perHour, "k"); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("a config that is not valid: %v", err)
	}
}

// orders is a fake of the statements' database.
type orders struct {
	pgx.Tx
	commit          error
	done            []string
	isolation       pgx.TxIsoLevel
	committed, gone int
}

func (o *orders) BeginTx(_ context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	o.isolation = options.IsoLevel
	return o, nil
}
func (o *orders) Begin(context.Context) (pgx.Tx, error) { return o, nil }
func (o *orders) Commit(context.Context) error          { o.committed++; return o.commit }
func (o *orders) Rollback(context.Context) error        { o.gone++; return nil }
func (o *orders) Exec(_ context.Context, sql string, _ ...any) (tag pgconn.CommandTag, _ error) {
	o.done = append(o.done, sql)
	return tag, nil
}

// TestMemoryDBStatements: a fake gets the statements and the ends; if its commit fails the
// limits are rolled back.
func TestMemoryDBStatements(t *testing.T) {
	l := limiter.NewMemory(nil)
	fake := &orders{}
	work := func(tx pgx.Tx, limits *limiter.Tx) error {
		allow(t, limits, "k")
		_, err := tx.Exec(t.Context(), "INSERT")
		return err
	}
	options := &limiter.TxOptions{TxOptions: pgx.TxOptions{IsoLevel: pgx.Serializable}}
	run := func() error {
		return limiter.RunTx(t.Context(), l, &limiter.MemoryDB{Limiter: l, Statements: fake}, options, work)
	}
	if err := run(); err != nil || len(fake.done) != 1 || fake.committed != 1 || fake.isolation != pgx.Serializable || level(t, l, "k") != 1 {
		t.Errorf("%v, %+v, %v units", err, fake, level(t, l, "k"))
	}
	fake.commit = &pgconn.PgError{Code: "23505"}
	if err := run(); !errors.Is(err, fake.commit) || level(t, l, "k") != 1 {
		t.Errorf("%v, %v units after a failed commit", err, level(t, l, "k"))
	}
}

// TestAdmissionsOfDoLastForIdempotencyTTL, also after a Reserve of a longer lifetime.
func TestAdmissionsOfDoLastForIdempotencyTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.NewMemory(&limiter.Config{IdempotencyTTL: time.Minute})
		request := perHour.Request("k", 1)
		request.IdempotencyKey = "order 1"
		for range 20 { // a pool of calls may not return the Reserve's at once
			if _, err := l.Reserve(t.Context(), perHour.Request("other", 1e-3), 24*time.Hour); err != nil {
				t.Fatal(err)
			}
			if r, err := l.Do(t.Context(), request); err != nil || r.Replayed {
				t.Fatalf("%+v, %v", r, err)
			}
			time.Sleep(time.Minute)
			if err := l.Reset(t.Context(), perHour, "k"); err != nil {
				t.Fatal(err)
			}
		}
	})
}
