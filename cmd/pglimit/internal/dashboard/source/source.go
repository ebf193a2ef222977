// Package source is the dashboard's source over a database.
package source

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/limiter"
)

const (
	slot     = 10 * time.Minute // of pglimit_denial
	day      = 24 * time.Hour   // what is shown of denials
	maxKept  = 1000             // of each list of a key
	lockWait = 3 * time.Second  // for a row that another transaction has locked
)

var queries = db.New()

// Source reads and changes the database of a pool. It implements dashboard.Source.
type Source struct {
	pool      *pgxpool.Pool
	secret    []byte
	inspector *inspect.Inspector
	policies  *limiter.Policies
	changes   *pgxpool.Pool    // so that changes do not wait for reads
	blocks    *limiter.Limiter // over changes; takes keys as they are stored

	top     memo[dashboard.Query, dashboard.Keys]
	denials memo[struct{}, dashboard.Denials]
	doctor  memo[struct{}, dashboard.Report]
}

// New returns a Source. secret is the limiters' Config.KeySecret; nil if they have none. It
// loads the policies, and follows their changes until Close; logger gets a warning if they
// cannot be loaded later. The error is that of the database. New does not close pool.
func New(ctx context.Context, pool *pgxpool.Pool, secret []byte, logger *slog.Logger) (*Source, error) {
	s := &Source{pool: pool, secret: secret, inspector: inspect.New(pool)}
	var err error
	if s.policies, err = limiter.OpenPolicies(ctx, pool, &limiter.PoliciesConfig{DisableListen: true, PollEvery: time.Second, Logger: logger}); err != nil {
		return nil, err
	}
	if s.changes, err = pgxpool.NewWithConfig(ctx, pool.Config()); err == nil {
		s.blocks, err = limiter.New(s.changes, &limiter.Config{DisableDenyCache: true, Timeout: lockWait, Logger: logger})
	}
	if err != nil {
		_ = s.policies.Close()
		return nil, err
	}
	return s, nil
}

// Close ends following the policies, and closes the connections for changes.
func (s *Source) Close() error {
	defer s.changes.Close()
	if err := s.blocks.Close(); err != nil {
		return err
	}
	return s.policies.Close()
}

// clock returns the database's time. It fails while the database does not answer.
func (s *Source) clock(ctx context.Context) (time.Time, error) {
	us, err := queries.Clock(ctx, s.pool, nil)
	return time.UnixMicro(us).UTC(), exec.Translate(err, false)
}

// stored returns the key as the tables have it.
func (s *Source) stored(ref dashboard.Ref) string {
	if ref.Stored {
		return ref.Key
	}
	return keys.Stored(ref.Key, s.secret)
}

// Policies returns the policies as of a second ago at most.
func (s *Source) Policies(ctx context.Context) (dashboard.Policies, error) {
	now, err := s.clock(ctx)
	if err != nil {
		return dashboard.Policies{}, err
	}
	all := dashboard.Policies{At: now, Version: s.policies.Version()}
	for _, p := range s.policies.List() {
		all.Policies = append(all.Policies, dashboard.Policy{StoredPolicy: p, Overrides: s.policies.OverrideCount(p.Name)})
	}
	return all, nil
}

// History returns the last changes.
func (s *Source) History(ctx context.Context, policy string, limit int) ([]limiter.PolicyChange, error) {
	return s.policies.History(ctx, policy, limit)
}

// Denials returns the denials of the last day.
func (s *Source) Denials(ctx context.Context) (dashboard.Denials, error) {
	return s.denials.get(ctx, struct{}{}, func(ctx context.Context) (dashboard.Denials, error) {
		d := dashboard.Denials{Slot: slot}
		var err error
		if d.At, err = s.clock(ctx); err != nil {
			return d, err
		}
		rows, err := queries.DashboardDenials(ctx, s.pool, d.At.Add(-day).UnixMicro())
		for _, r := range rows {
			d.Slots = append(d.Slots, dashboard.DenialSlot{Start: time.UnixMicro(r.SlotUs).UTC(), Policy: r.Policy, Denials: r.Denials, Shadowed: r.Shadowed, Units: r.Units})
		}
		return d, exec.Translate(err, false)
	})
}

// Doctor makes the doctor's checks.
func (s *Source) Doctor(ctx context.Context) (dashboard.Report, error) {
	return s.doctor.get(ctx, struct{}{}, func(ctx context.Context) (dashboard.Report, error) {
		report, err := doctor.Run(ctx, s.pool, &doctor.Config{Timeout: 2 * time.Second})
		r := dashboard.Report{At: report.At}
		for _, c := range report.Checks {
			r.Checks = append(r.Checks, dashboard.Check{Name: c.Name, Status: c.Status.String(), Message: c.Message, Fix: c.Fix, Details: c.Details})
		}
		return r, err
	})
}

func target(t dashboard.Target, stored string) []inspect.Target {
	return []inspect.Target{{Algorithm: algorithm.Name(t.Algorithm), Policy: t.Policy, Key: stored}}
}

// Block blocks a key, with or without a row.
func (s *Source) Block(ctx context.Context, t dashboard.Target, d time.Duration) error {
	defer s.top.forget()
	// Blocks do not depend on the limit and the period.
	p := limiter.Policy{Name: t.Policy, Algorithm: t.Algorithm, Limit: 1, Period: time.Second}
	return s.blocks.Block(ctx, p, s.stored(t.Ref), d)
}

// Unblock lifts a block.
func (s *Source) Unblock(ctx context.Context, t dashboard.Target) (bool, error) {
	defer s.top.forget()
	counts, err := inspect.New(s.changes).Unblock(ctx, target(t, s.stored(t.Ref)), inspect.Options{Wait: lockWait})
	return len(counts) > 0, err
}

// Reset deletes what a key has used.
func (s *Source) Reset(ctx context.Context, t dashboard.Target) (bool, error) {
	defer s.top.forget()
	counts, err := inspect.New(s.changes).Reset(ctx, target(t, s.stored(t.Ref)), inspect.Options{Wait: lockWait})
	return len(counts) > 0, err
}

const (
	// rest is how many times as long as an answer took it is given again, so that open
	// pages cost the database at most a tenth of one connection's time for each question.
	rest = 10
	// maxAnswers is how many questions are remembered.
	maxAnswers = 100
)

// memo remembers answers for a while that depends on how long they took. Callers with the
// same question wait for one answer. The zero value is ready to use.
type memo[Q comparable, A any] struct {
	mu      sync.Mutex
	answers map[Q]*answer[A]
}

// answer is one that may not have come yet.
type answer[A any] struct {
	asking chan struct{} // has room for one who asks
	value  A
	until  time.Time // the value may be used; zero: there is none
}

// get returns the answer to q: a remembered one, or that of ask. Errors are not remembered.
func (m *memo[Q, A]) get(ctx context.Context, q Q, ask func(context.Context) (A, error)) (A, error) {
	m.mu.Lock()
	a := m.answers[q]
	if a == nil {
		if len(m.answers) >= maxAnswers || m.answers == nil {
			m.answers = map[Q]*answer[A]{}
		}
		a = &answer[A]{asking: make(chan struct{}, 1)}
		m.answers[q] = a
	}
	m.mu.Unlock()
	select {
	case a.asking <- struct{}{}:
		defer func() { <-a.asking }()
	case <-ctx.Done():
		var none A
		return none, context.Cause(ctx)
	}
	if time.Now().Before(a.until) {
		return a.value, nil
	}
	began := time.Now()
	value, err := ask(ctx)
	if err == nil {
		a.value, a.until = value, time.Now().Add(rest*time.Since(began))
	}
	return value, err
}

// forget makes the next questions be asked.
func (m *memo[Q, A]) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers = nil
}
