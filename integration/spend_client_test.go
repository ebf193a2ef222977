package integration

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// spenderEnv makes the test binary a client of TestSpendInvariant instead: a
// process of its own can be killed.
const spenderEnv = "PGLIMIT_TEST_SPENDER"

func init() {
	if os.Getenv(spenderEnv) != "" {
		if err := spend(os.Stdin, json.NewEncoder(os.Stdout)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

const (
	spendWorkers  = 8 // of each client
	spendPatience = time.Minute
	spendRest     = 20 * time.Millisecond
)

// spendWord is what a client is told: at first all of it, then where the server
// is now. It ends when there is no more to read.
type spendWord struct {
	Server  string // its URL
	URL     string // of the database, when the test began
	Name    string
	Zone    string // of the months
	Janitor bool
}

// spendReport is what a client tells: what it did so far, and what went wrong.
type spendReport struct {
	Done   map[string]int64
	Faults []string
	Ended  bool // in order
}

// spender is a client.
type spender struct {
	name string
	spendPolicies
	pool    *pgxpool.Pool
	db      *sql.DB
	limiter *limiter.Limiter

	mu     sync.Mutex
	report spendReport
}

// spend is a client's life: it reads words from in and reports to out.
func spend(in io.Reader, out *json.Encoder) error {
	words := json.NewDecoder(in)
	var word spendWord
	if err := words.Decode(&word); err != nil {
		return err
	}
	var server atomic.Pointer[string]
	server.Store(&word.Server)
	s, err := newSpender(word, func() string { return *server.Load() })
	if err != nil {
		return err
	}
	defer s.pool.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel() // also if whoever started this process is gone
		for {
			var next spendWord
			if words.Decode(&next) != nil {
				return
			}
			server.Store(&next.Server)
		}
	}()
	var working sync.WaitGroup
	for i := range spendWorkers {
		w := &spendWorker{spender: s, id: fmt.Sprintf("%s-%d", s.name, i)}
		working.Go(func() { w.run(ctx) })
	}
	if word.Janitor {
		j, err := janitor.New(s.pool, &janitor.Config{Interval: time.Second, Lease: time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		working.Go(func() { _ = j.Run(ctx) }) // it runs once
	}
	ended := make(chan struct{})
	go func() { working.Wait(); close(ended) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for over := false; !over; {
		select {
		case <-tick.C:
		case <-ended:
			over = true
		}
		if err := s.tell(out, over); err != nil {
			return err
		}
	}
	return nil
}

func newSpender(word spendWord, server func() string) (*spender, error) {
	cfg, err := pgxpool.ParseConfig(word.URL)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = spendWorkers + 1
	cfg.ConnConfig.DialFunc = newDialer(server).dial
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	l, err := limiter.New(pool, &limiter.Config{BreakFor: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	return &spender{
		name: word.Name, spendPolicies: newSpendPolicies(word.Zone),
		pool: pool, db: stdlib.OpenDBFromPool(pool), limiter: l, report: spendReport{Done: map[string]int64{}},
	}, err
}

func (s *spender) tell(out *json.Encoder, ended bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Ended = ended
	return out.Encode(s.report)
}

func (s *spender) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Done[what]++
}

// fault is what must not happen.
func (s *spender) fault(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.report.Faults) < 10 {
		s.report.Faults = append(s.report.Faults, s.name+": "+fmt.Sprintf(format, args...))
	}
}

var errStuck = fmt.Errorf("there was no answer within %v", spendPatience)

// patiently is against hanging for ever.
func patiently() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.Background(), spendPatience, errStuck)
}

// sqlState is the code of what the server said, empty if it was not the server.
func sqlState(err error) string {
	if answer := (*pgconn.PgError)(nil); errors.As(err, &answer) {
		return answer.Code
	}
	return ""
}

// judge tells what may happen while servers are killed from what must not.
func (s *spender) judge(what string, err error) {
	code := sqlState(err)
	switch {
	case code == "40P01":
		s.count("deadlocks")
	case errors.Is(err, limiter.ErrRetryTx):
		s.count("conflicts")
	case code != "" && !strings.HasPrefix(code, "57") && !strings.HasPrefix(code, "08"),
		errors.Is(err, limiter.ErrInvalid), errors.Is(err, limiter.ErrUnsupported), errors.Is(err, limiter.ErrClosed),
		errors.Is(err, limiter.ErrNoHold), errors.Is(err, limiter.ErrHoldEnded), errors.Is(err, limiter.ErrNotMigrated):
		s.fault("%s: %v", what, err)
	default:
		s.count("errors")
	}
}

// spendWorker is one of a client's workers.
type spendWorker struct {
	*spender
	id string
	n  int
}

// run acts until ctx ends; what was begun is finished.
func (w *spendWorker) run(ctx context.Context) {
	for ctx.Err() == nil {
		acts := []struct {
			of  int // of a hundred
			act func()
		}{
			{36, w.order}, {10, w.orderOnce}, {6, w.orderAfter}, {4, w.askInVain},
			{20, w.hold}, {14, w.job}, {4, w.adopt}, {6, func() { w.giveBack(w.policy(), w.account()) }},
		}
		n := rand.IntN(100)
		for _, a := range acts {
			if n -= a.of; n < 0 {
				a.act()
				break
			}
		}
		rest(rand.N(spendRest))
	}
}

func rest(d time.Duration) { <-time.After(d) }

func (w *spendWorker) newID(kind string) string {
	w.n++
	return fmt.Sprintf("%s-%s-%d", kind, w.id, w.n)
}

// chance is true so many times of a hundred.
func chance(percent int) bool { return rand.IntN(100) < percent }

// fate is how a transaction is to end.
type fate int

const (
	toCommit fate = iota
	toRollBack
	toFail   // by a statement that does
	toCancel // by the end of its context, wherever that comes
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

// transact does work in a transaction, which is rolled back if work says so.
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
		_ = tx.close(outer, false) // perhaps there is no connection any more
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
		if err == nil {
			w.count("committed")
			return spendCommitted
		}
		w.lost(ctx, "commit", err)
		w.count("unknown outcomes")
		return spendUnknown
	}
	return spendRolledBack
}

// lost is for an error that ended something; while the server is away it waits.
func (w *spendWorker) lost(ctx context.Context, what string, err error) {
	switch {
	case context.Cause(ctx) == errStuck:
		w.fault("%s: %v: %v", what, errStuck, err)
	case ctx.Err() != nil:
		w.count("ended by a context")
	default:
		w.judge(what, err)
		rest(spendRest)
	}
}

// insist asks until an answer comes; it is for what can be asked again.
func (w *spendWorker) insist(what string, ask func(context.Context) error) {
	for first := true; ; first = false {
		ctx, cancel := patiently()
		if first && chance(15) { // the answer is not waited for
			cancel()
			ctx, cancel = context.WithTimeout(context.Background(), rand.N(4*time.Millisecond))
		}
		err := ask(ctx)
		if err == nil {
			cancel()
			return
		}
		w.lost(ctx, what, err)
		w.count("asked again")
		cancel()
	}
}

// granted checks an answer: nothing is admitted above the budget.
func (w *spendWorker) granted(r limiter.Result) bool {
	if r.Allowed && !r.Replayed && r.Level > r.Burst {
		w.fault("admitted above the budget: %+v", r)
	}
	if !r.Allowed {
		w.count("denied")
	}
	return r.Allowed
}
