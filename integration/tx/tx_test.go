package tx

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// TestTxRollsBackWithTheCaller: every verb's effect is rolled back with the transaction.
func TestTxRollsBackWithTheCaller(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, nil)
	for _, p := range bed.Variants(10, 1000*time.Hour) {
		p.BlockFor = time.Hour
		t.Run(bed.Variant(p), func(t *testing.T) {
			t.Parallel()
			bed.Must(t)(l.AllowN(ctx, p, "k", 4))
			effects := map[string]func(tx *limiter.Tx) error{
				"allow":  func(tx *limiter.Tx) error { _, err := tx.AllowN(ctx, p, "k", 3); return err },
				"upto":   func(tx *limiter.Tx) error { _, err := tx.AllowUpTo(ctx, p, "k", 9); return err },
				"charge": func(tx *limiter.Tx) error { _, err := tx.Charge(ctx, p, "k", 3); return err },
				"deny":   func(tx *limiter.Tx) error { _, err := tx.AllowN(ctx, p, "k", 9); return err }, // starts a block
				"reset":  func(tx *limiter.Tx) error { return tx.Reset(ctx, p, "k") },
				"block":  func(tx *limiter.Tx) error { return tx.Block(ctx, p, "k", time.Hour) },
			}
			if p.Algorithm != limiter.LeakyBucketQueue {
				effects["refund"] = func(tx *limiter.Tx) error { _, err := tx.Refund(ctx, p, "k", 2); return err }
			}
			for name, effect := range effects {
				tx := bed.Begin(t, pool, pgx.TxOptions{})
				if err := effect(l.InTx(tx)); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				inside := bed.Must(t)(l.InTx(tx).Check(ctx, p, "k", 0))
				if inside.Allowed && bed.Near(inside.Level, 4) {
					t.Errorf("%s: no effect inside the transaction: %+v", name, inside)
				}
				if err := tx.Rollback(ctx); err != nil {
					t.Fatal(err)
				}
				if r := bed.Must(t)(l.Check(ctx, p, "k", 0)); !r.Allowed || !bed.Near(r.Level, 4) {
					t.Errorf("%s: left after the rollback: %+v", name, r)
				}
			}
			tx := bed.Begin(t, pool, pgx.TxOptions{})
			bed.Must(t)(l.InTx(tx).AllowN(ctx, p, "k", 3))
			if err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			if r := bed.Must(t)(l.Check(ctx, p, "k", 0)); !bed.Near(r.Level, 7) {
				t.Errorf("after the commit: %+v", r)
			}
		})
	}
}

// TestTxConflictsAreErrRetryTx: in a caller's transaction of a stricter isolation, a
// concurrent change returns an error that names the next step.
func TestTxConflictsAreErrRetryTx(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "retry", Algorithm: limiter.GCRA, Limit: 10, Period: time.Hour}
	tx := bed.Begin(t, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	var one int
	if err := tx.QueryRow(ctx, "SELECT 1").Scan(&one); err != nil { // takes the snapshot
		t.Fatal(err)
	}
	bed.Must(t)(l.Allow(ctx, p, "k"))
	p.OnError = limiter.FailOpen // still fails closed in a transaction
	_, err := l.InTx(tx).Allow(ctx, p, "k")
	var pgErr *pgconn.PgError
	if !errors.Is(err, limiter.ErrRetryTx) || !errors.As(err, &pgErr) || pgErr.Code != "40001" {
		t.Errorf("got %v, want ErrRetryTx around 40001", err)
	}
}
