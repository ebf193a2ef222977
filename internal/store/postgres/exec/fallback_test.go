package exec

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/sending"
)

// scripted are Connections that answer each statement with the next error. They record
// the statements: "cached" or "exec", with "begin " in a transaction, and "renew".
type scripted struct {
	answers  []error
	sent     []string
	within   string
	other    bool // it is a driver without modes
	renews   int  // how often Renew returns true
	released int
	refuses  error
}

func (s *scripted) Exec(_ context.Context, _ string, args ...any) (pgconn.CommandTag, error) {
	how := "cached"
	if len(args) > 0 && args[0] == pgx.QueryExecModeExec {
		how = "exec"
	}
	s.sent = append(s.sent, s.within+how)
	err := s.answers[0]
	s.answers = s.answers[1:]
	return pgconn.CommandTag{}, err
}

func (s *scripted) Query(context.Context, string, ...any) (pgx.Rows, error) { panic("not used") }
func (s *scripted) QueryRow(context.Context, string, ...any) pgx.Row        { panic("not used") }

// Acquire lends s.
func (s *scripted) Acquire(context.Context) (db.DBTX, func(error) error, error) {
	if s.refuses != nil {
		s.sent = append(s.sent, "connect")
	}
	lent := true
	return s, func(err error) error {
		if !lent {
			panic("released twice")
		}
		lent = false
		s.released++
		return err
	}, s.refuses
}

func (s *scripted) Exhausted() bool { return false }

func (s *scripted) Pipelines() bool { return true }

func (s *scripted) Leaves() bool { return false }

func (s *scripted) Once(_ context.Context, f func(db.DBTX) error) error {
	if s.refuses != nil {
		s.sent = append(s.sent, "connect")
		return s.refuses
	}
	s.within = "begin "
	defer func() { s.within = "" }()
	return f(s)
}

func (s *scripted) Uncacheable(error) bool { return !s.other }

func (s *scripted) Renew() bool {
	s.sent = append(s.sent, "renew")
	s.renews--
	return s.renews >= 0
}

func answer(code string) error { return &pgconn.PgError{Code: code} }

// TestFallback: what is sent after each answer, and what the caller gets.
func TestFallback(t *testing.T) {
	lost, duplicate, readOnly := answer("26000"), answer("42P05"), answer("25006")
	stalePlan := &pgconn.PgError{Code: "0A000", Message: "cached plan must not change result type"}
	for name, c := range map[string]struct {
		answers []error
		other   bool
		renews  int
		sent    []string
		is      error // nil: no error
		off     bool  // the cache is not used again
	}{
		"fine":                       {answers: []error{nil}, sent: []string{"cached"}},
		"lost":                       {answers: []error{lost, nil}, sent: []string{"cached", "exec"}, off: true},
		"duplicate":                  {answers: []error{duplicate, nil}, sent: []string{"cached", "exec"}, off: true},
		"stale":                      {answers: []error{stalePlan, nil}, sent: []string{"cached", "exec"}},
		"lost twice":                 {answers: []error{lost, lost}, sent: []string{"cached", "exec"}, is: store.ErrMisconfigured},
		"lost, then the server":      {answers: []error{lost, io.ErrUnexpectedEOF}, sent: []string{"cached", "exec"}, is: store.ErrMisconfigured},
		"lost, then an invalid key":  {answers: []error{lost, answer("22021")}, sent: []string{"cached", "exec"}, is: store.ErrInvalid, off: true},
		"lost, then missing tables":  {answers: []error{lost, answer("42P01")}, sent: []string{"cached", "exec"}, is: store.ErrNotMigrated, off: true},
		"lost by a driver like pq":   {answers: []error{lost}, other: true, sent: []string{"cached"}, is: store.ErrMisconfigured},
		"read-only, then not":        {answers: []error{readOnly, nil}, sent: []string{"cached", "renew", "cached"}},
		"read-only":                  {answers: []error{readOnly, readOnly}, sent: []string{"cached", "renew", "cached"}, is: store.ErrMisconfigured},
		"read-only connections":      {answers: []error{readOnly, readOnly, readOnly, nil}, renews: 2, sent: []string{"cached", "renew", "cached", "renew", "cached", "renew", "cached"}},
		"read-only, then the server": {answers: []error{readOnly, io.ErrUnexpectedEOF}, sent: []string{"cached", "renew", "cached"}, is: store.ErrUnavailable},
		"conflict, then lost":        {answers: []error{answer("40P01"), lost, nil}, sent: []string{"cached", "cached", "exec"}, off: true},
		"no right":                   {answers: []error{answer("42501")}, sent: []string{"cached"}, is: store.ErrMisconfigured},
	} {
		for _, within := range []bool{false, true} {
			s := &scripted{answers: slices.Clone(c.answers), other: c.other, renews: c.renews}
			warned := 0
			cache := NewCache(func(err error) {
				warned++
				if !errors.Is(err, pooler.ErrStatements) {
					t.Errorf("%s: warned of %v", name, err)
				}
			})
			r, prefix := NewPool(s, cache), ""
			if within {
				prefix = "begin "
			}
			statement := func(tx db.DBTX) error { _, err := tx.Exec(t.Context(), "statement", 7); return err }
			err := Translate(r.Run(t.Context(), Mode(within), statement), false)
			if (err == nil) != (c.is == nil) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%s: got %v", name, err)
			}
			want := slices.Clone(c.sent)
			for i, w := range want {
				if w != "renew" {
					want[i] = prefix + w
				}
			}
			if !slices.Equal(s.sent, want) || len(s.answers) != 0 {
				t.Errorf("%s: sent %q, want %q", name, s.sent, want)
			}
			s.sent, s.answers = nil, []error{nil}
			if err := r.Run(t.Context(), Mode(within), statement); err != nil || (s.sent[0] == prefix+"exec") != c.off || (warned == 1) != c.off {
				t.Errorf("%s: afterwards sent %q, %v; %d warnings", name, s.sent, err, warned)
			}
		}
	}
}

// TestFallbackElsewhere: the goroutine that goes on for a caller learns that statements get
// lost.
func TestFallbackElsewhere(t *testing.T) {
	s := &scripted{answers: []error{answer("26000"), store.ErrElsewhere, nil}}
	r := NewPool(s, NewCache(func(error) {}))
	statement := func(tx db.DBTX) error { _, err := tx.Exec(t.Context(), "statement"); return err }
	for _, want := range []error{store.ErrElsewhere, nil} {
		if err := r.Run(t.Context(), Statement, statement); err != want {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if want := []string{"cached", "exec", "exec"}; !slices.Equal(s.sent, want) {
		t.Errorf("sent %q, want %q", s.sent, want)
	}
}

// TestFallbackAfterARest: if the answer that another goroutine reads on is a conflict, the
// statement is sent again as others are by then: unprepared, if statements get lost.
func TestFallbackAfterARest(t *testing.T) {
	ctx := &sending.Context{Rest: &Answer{release: func(err error) error { return err }}}
	s := &scripted{answers: []error{nil}}
	cache := NewCache(func(error) {})
	cache.turnOff(answer("26000"))
	err := NewPool(s, cache).Run(ctx, Statement, func(tx db.DBTX) error {
		if _, rest := tx.(*Answer); rest {
			return answer("40001")
		}
		_, err := tx.Exec(ctx, "statement")
		return err
	})
	if want := []string{"begin exec"}; err != nil || !slices.Equal(s.sent, want) {
		t.Errorf("%v, sent %q, want %q", err, s.sent, want)
	}
}

// TestFallbackEnded: a caller whose context has ended sends nothing again.
func TestFallbackEnded(t *testing.T) {
	for _, code := range []string{"26000", "25006"} {
		ctx, cancel := context.WithCancel(t.Context())
		s := &scripted{answers: []error{answer(code)}}
		r := NewPool(s, NewCache(func(error) { t.Error("warned") }))
		err := r.Run(ctx, Statement, func(tx db.DBTX) error {
			cancel()
			_, err := tx.Exec(ctx, "statement")
			return err
		})
		if err == nil || len(s.sent) != 1 {
			t.Errorf("%s: %v, sent %q", code, err, s.sent)
		}
	}
}

// TestPoolOutlivesAPanic: a hook of the application that panics leaves no connection in use.
func TestPoolOutlivesAPanic(t *testing.T) {
	s := new(scripted)
	func() {
		defer func() { _ = recover() }()
		_ = NewPool(s, NewCache(nil)).Run(t.Context(), Statement, func(db.DBTX) error { panic("a hook") })
		t.Error("it did not panic")
	}()
	if s.released != 1 {
		t.Errorf("released %d times", s.released)
	}
}

// TestUncachedHasNoPipeline: statements without the cache are sent one at a time, and a
// transaction cannot unwind in one round trip.
func TestUncachedHasNoPipeline(t *testing.T) {
	var tx db.DBTX = uncached{poolTx{}}
	if _, ok := tx.(batcher); ok {
		t.Error("it pipelines")
	}
	if _, ok := tx.(Unwinder); ok {
		t.Error("it unwinds")
	}
}
