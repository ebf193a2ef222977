// Package source is the dashboard's source over a database.
package source

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/internal/inspect"
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
	blocks    *limiter.Limiter // takes keys as they are stored

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
	if s.blocks, err = limiter.New(pool, &limiter.Config{DisableDenyCache: true, Timeout: lockWait, Logger: logger}); err != nil {
		_ = s.policies.Close()
		return nil, err
	}
	return s, nil
}

// Close ends following the policies.
func (s *Source) Close() error {
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
	overrides := map[string]int{}
	for _, o := range s.policies.Overrides("") {
		overrides[o.Policy]++
	}
	all := dashboard.Policies{At: now, Version: s.policies.Version()}
	for _, p := range s.policies.List() {
		all.Policies = append(all.Policies, dashboard.Policy{StoredPolicy: p, Overrides: overrides[p.Name]})
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
	counts, err := s.inspector.Unblock(ctx, target(t, s.stored(t.Ref)), inspect.Options{Wait: lockWait})
	return len(counts) > 0, err
}

// Reset deletes what a key has used.
func (s *Source) Reset(ctx context.Context, t dashboard.Target) (bool, error) {
	defer s.top.forget()
	counts, err := s.inspector.Reset(ctx, target(t, s.stored(t.Ref)), inspect.Options{Wait: lockWait})
	return len(counts) > 0, err
}
