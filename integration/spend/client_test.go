package spend

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

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// spenderEnv makes the test binary a client of TestSpendInvariant: a separate process can
// be killed.
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
	spendRest     = 20 * time.Millisecond // at most
)

// spendWord is a message to a client: first everything it needs, then each new address of
// the server. The end of input ends the client.
type spendWord struct {
	Server  string // its URL
	URL     string // of the database, when the test began
	Name    string
	Zone    string // of the months
	Janitor bool
}

// spendReport is a message from a client: what it has done so far, and what went wrong.
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

// spend runs a client: it reads messages from in and writes reports to out.
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
		defer cancel() // even if its parent process is gone
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
	ended, stuck := make(chan struct{}), make(chan struct{})
	go func() { working.Wait(); close(ended) }()
	context.AfterFunc(ctx, func() { time.AfterFunc(spendPatience, func() { close(stuck) }) })
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for over := false; !over; {
		select {
		case <-tick.C:
		case <-ended:
			over = true
		case <-stuck:
			return errStuck
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
	cfg.ConnConfig.DialFunc = bed.NewDialer(server).Dial
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

// fault is a violation of the invariant.
func (s *spender) fault(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.report.Faults) < 10 {
		s.report.Faults = append(s.report.Faults, s.name+": "+fmt.Sprintf(format, args...))
	}
}

var errStuck = fmt.Errorf("there was no answer within %v", spendPatience)

// patiently bounds a context, to prevent a hang.
func patiently() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.Background(), spendPatience, errStuck)
}

// sqlState returns the SQLSTATE of the server's error, empty for other errors.
func sqlState(err error) string {
	if answer := (*pgconn.PgError)(nil); errors.As(err, &answer) {
		return answer.Code
	}
	return ""
}

// judge separates errors that are expected while servers are killed from faults.
func (s *spender) judge(what string, err error) {
	code := sqlState(err)
	switch {
	case code == "40P01":
		s.count("deadlocks")
	case errors.Is(err, limiter.ErrRetryTx):
		s.count("conflicts")
	case code != "" && !strings.HasPrefix(code, "57") && !strings.HasPrefix(code, "08"),
		errors.Is(err, limiter.ErrInvalid), errors.Is(err, limiter.ErrUnsupported), errors.Is(err, limiter.ErrClosed),
		errors.Is(err, limiter.ErrNoReservation), errors.Is(err, limiter.ErrReservationEnded), errors.Is(err, limiter.ErrNotMigrated):
		s.fault("%s: %v", what, err)
	default:
		s.count("errors")
	}
}

// spendWorker is one of a client's workers.
type spendWorker struct {
	*spender
	id     string
	n      int
	told   []string // the last orders known to be committed
	shaken bool     // the server was away since they were last checked
}

// run acts until ctx ends, and finishes what it has begun.
func (w *spendWorker) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.lookBack()
		acts := []struct {
			of  int // percent
			act func()
		}{
			{36, w.order}, {10, w.orderOnce}, {6, w.orderAfter}, {4, w.askInVain},
			{20, w.reservation}, {14, w.job}, {4, w.adopt}, {6, func() { w.giveBack(w.policy(), w.account()) }},
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

// rest is a worker's pause, or its wait while the server is away. Nothing depends on its
// length.
func rest(d time.Duration) { <-time.After(d) }

// ordered records that an order is committed.
func (w *spendWorker) ordered(id string) {
	w.count("orders")
	w.told = append(w.told, id)
	w.told = w.told[max(0, len(w.told)-50):]
}

// lookBack checks, once the server is back, that it lost nothing acknowledged.
func (w *spendWorker) lookBack() {
	if !w.shaken {
		return
	}
	ctx, cancel := patiently()
	defer cancel()
	var there int
	err := w.pool.QueryRow(ctx, "SELECT count(*) FROM orders WHERE id = ANY($1)", w.told).Scan(&there)
	if err != nil {
		w.lost(ctx, "look back", err)
		return
	}
	if w.shaken = false; there != len(w.told) {
		w.fault("%d of %d orders are there that were committed", there, len(w.told))
	}
	w.count("looked back")
}

func (w *spendWorker) newID(kind string) string {
	w.n++
	return fmt.Sprintf("%s-%s-%d", kind, w.id, w.n)
}

// chance is true for that percentage of calls.
func chance(percent int) bool { return rand.IntN(100) < percent }

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
