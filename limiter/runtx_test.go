package limiter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// fakeTx is a transaction whose commits return the errors that a test sets.
type fakeTx struct {
	pgx.Tx
	db     *fakeDB
	closed bool
}

func (tx *fakeTx) Commit(context.Context) error {
	if tx.closed {
		return pgx.ErrTxClosed
	}
	tx.closed = true
	if len(tx.db.commits) > 0 {
		err := tx.db.commits[0]
		tx.db.commits = tx.db.commits[1:]
		if err != nil {
			tx.db.did = append(tx.db.did, "failed commit")
			return err
		}
	}
	tx.db.did = append(tx.db.did, "commit")
	return nil
}

func (tx *fakeTx) Rollback(ctx context.Context) error {
	if tx.closed {
		return pgx.ErrTxClosed
	}
	tx.closed = true
	if _, bounded := ctx.Deadline(); ctx.Err() != nil || !bounded {
		return errors.New("a rollback needs a context that has not ended and will")
	}
	tx.db.did = append(tx.db.did, "rollback")
	return nil
}

type fakeDB struct {
	begin   error
	options []pgx.TxOptions
	commits []error // of the next commits
	did     []string
}

func (db *fakeDB) BeginTx(_ context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	db.options = append(db.options, o)
	if db.begin != nil {
		return nil, db.begin
	}
	return &fakeTx{db: db}, nil
}

func state(code string) error { return &pgconn.PgError{Code: code, Message: "made up"} }

// unsent is the error of a statement that was not sent.
type unsent struct{ error }

func (unsent) SafeToRetry() bool { return true }
func (u unsent) Unwrap() error   { return u.error }

func TestRunTx(t *testing.T) {
	other := errors.New("other")
	conflict := fmt.Errorf("in work: %w", fmt.Errorf("%w: %w", ErrRetryTx, state("40001")))
	for name, c := range map[string]struct {
		attempts int
		begin    error
		works    []error // then nil
		commits  []error // then nil
		did      string
		want     []error // errors.Is
		not      []error
	}{
		"commits":                  {did: "commit"},
		"of the limiter":           {works: []error{conflict}, did: "rollback, commit"},
		"of own statements":        {works: []error{state("40001"), fmt.Errorf("w: %w", state("40P01")), state("55P03")}, did: "rollback, rollback, rollback, commit"},
		"of the commit":            {commits: []error{state("40001"), state("40P01")}, did: "failed commit, failed commit, commit"},
		"of a stale plan":          {works: []error{&pgconn.PgError{Code: "0A000", Message: "cached plan must not change result type"}}, did: "rollback, commit"},
		"five by default":          {works: slices.Repeat([]error{conflict}, 9), did: "rollback, rollback, rollback, rollback, rollback", want: []error{ErrRetryTx}},
		"two":                      {attempts: 2, commits: slices.Repeat([]error{state("40001")}, 9), did: "failed commit, failed commit", want: []error{ErrRetryTx}},
		"one":                      {attempts: 1, works: []error{state("40001")}, did: "rollback", want: []error{ErrRetryTx}},
		"negative":                 {attempts: -1, want: []error{ErrInvalid}},
		"an error":                 {works: []error{other}, did: "rollback", want: []error{other}, not: []error{ErrRetryTx}},
		"a denial":                 {works: []error{&DeniedError{}}, did: "rollback", not: []error{ErrRetryTx}},
		"another SQLSTATE":         {works: []error{state("23505")}, did: "rollback", not: []error{ErrRetryTx}},
		"begin fails":              {begin: state("40001"), not: []error{ErrRetryTx}},
		"commit without an answer": {commits: []error{io.ErrUnexpectedEOF}, did: "failed commit", want: []error{ErrCommitUnknown, io.ErrUnexpectedEOF}, not: []error{ErrRetryTx}},
		"commit, server ends":      {commits: []error{state("57P01")}, did: "failed commit", want: []error{ErrCommitUnknown}},
		"commit, unknown itself":   {commits: []error{state("40003")}, did: "failed commit", want: []error{ErrCommitUnknown}},
		"commit, deferred check":   {commits: []error{state("23505")}, did: "failed commit", not: []error{ErrCommitUnknown, ErrRetryTx}},
		"commit, work ignored":     {commits: []error{pgx.ErrTxCommitRollback}, did: "failed commit", want: []error{pgx.ErrTxCommitRollback}, not: []error{ErrCommitUnknown}},
		"commit was not sent":      {commits: []error{unsent{other}}, did: "failed commit", want: []error{other}, not: []error{ErrCommitUnknown}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &fakeDB{begin: c.begin, commits: c.commits}
				works := c.works
				err := RunTx(t.Context(), NewMemory(nil), db, &TxOptions{Attempts: c.attempts}, func(tx pgx.Tx, limits *Tx) error {
					if tx == nil || limits == nil {
						t.Errorf("tx is %v, limits %v", tx, limits)
					}
					if len(works) == 0 {
						return nil
					}
					err := works[0]
					works = works[1:]
					return err
				})
				if did := strings.Join(db.did, ", "); did != c.did {
					t.Errorf("did %q, want %q", did, c.did)
				}
				fails := c.begin != nil || len(c.want)+len(c.not) > 0
				if (err != nil) != fails {
					t.Errorf("got %v", err)
				}
				for _, want := range c.want {
					if !errors.Is(err, want) {
						t.Errorf("got %v, want %v", err, want)
					}
				}
				for _, not := range c.not {
					if errors.Is(err, not) {
						t.Errorf("got %v, want no %v", err, not)
					}
				}
				if err != nil && strings.Count(err.Error(), "run the transaction again") > 1 {
					t.Errorf("the message repeats itself: %v", err)
				}
			})
		})
	}
}

// TestRunTxWaits: the waits grow, vary, and end with the context.
func TestRunTxWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waits []time.Duration
		last := time.Time{}
		err := RunTx(t.Context(), NewMemory(nil), &fakeDB{}, &TxOptions{Attempts: 12}, func(pgx.Tx, *Tx) error {
			if !last.IsZero() {
				waits = append(waits, time.Since(last))
			}
			last = time.Now()
			return ErrRetryTx
		})
		if !errors.Is(err, ErrRetryTx) || len(waits) != 11 {
			t.Fatalf("%v, waits %v", err, waits)
		}
		for i, wait := range waits {
			if most := min(time.Second, 10*time.Millisecond<<i); wait <= 0 || wait > most {
				t.Errorf("wait %d is %v, want more than 0 and at most %v", i, wait, most)
			}
		}
		drawn := map[time.Duration]bool{}
		for range 100 {
			drawn[backoff(5)] = true
		}
		if len(drawn) < 50 {
			t.Errorf("of 100 waits only %d differ", len(drawn))
		}
	})
}

func TestRunTxEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		db := &fakeDB{}
		err := RunTx(ctx, NewMemory(nil), db, nil, func(pgx.Tx, *Tx) error {
			time.AfterFunc(1, cancel) // during the wait
			return state("40001")
		})
		var cause *pgconn.PgError
		if !errors.Is(err, context.Canceled) || !errors.As(err, &cause) || strings.Join(db.did, ", ") != "rollback" {
			t.Errorf("ended during a wait: %v, did %q", err, db.did)
		}
		// The end of the context before the commit rolls back.
		ctx, cancel = context.WithCancel(t.Context())
		db = &fakeDB{}
		err = RunTx(ctx, NewMemory(nil), db, nil, func(pgx.Tx, *Tx) error { cancel(); return nil })
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrCommitUnknown) || strings.Join(db.did, ", ") != "rollback" {
			t.Errorf("ended before the commit: %v, did %q", err, db.did)
		}
	})
}

func TestRunTxPanics(t *testing.T) {
	db := &fakeDB{}
	func() {
		defer func() {
			if recover() != "made up" {
				t.Error("the panic did not go on")
			}
		}()
		_ = RunTx(t.Context(), NewMemory(nil), db, nil, func(pgx.Tx, *Tx) error { panic("made up") })
	}()
	if strings.Join(db.did, ", ") != "rollback" {
		t.Errorf("did %q", db.did)
	}
}

func TestRunTxWorkEndsIt(t *testing.T) {
	db := &fakeDB{}
	err := RunTx(t.Context(), NewMemory(nil), db, nil, func(tx pgx.Tx, _ *Tx) error { return tx.Commit(t.Context()) })
	if !errors.Is(err, pgx.ErrTxClosed) || !strings.Contains(err.Error(), "work") || len(db.did) != 1 {
		t.Errorf("got %v, did %q", err, db.did)
	}
}

func TestRunTxOptions(t *testing.T) {
	db := &fakeDB{}
	work := func(pgx.Tx, *Tx) error { return nil }
	want := pgx.TxOptions{IsoLevel: pgx.Serializable, AccessMode: pgx.ReadWrite}
	if err := RunTx(t.Context(), NewMemory(nil), db, &TxOptions{TxOptions: want}, work); err != nil || db.options[0] != want {
		t.Errorf("began with %+v, %v", db.options, err)
	}
	for name, err := range map[string]error{
		"l":    RunTx(t.Context(), nil, db, nil, work),
		"db":   RunTx(t.Context(), NewMemory(nil), nil, nil, work),
		"work": RunTx(t.Context(), NewMemory(nil), db, nil, nil),
	} {
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), name+" nil") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := RunSQLTx(t.Context(), NewMemory(nil), nil, nil, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("RunSQLTx: %v", err)
	}
}
