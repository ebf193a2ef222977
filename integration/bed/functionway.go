package bed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// Functions sends calls by the SQL functions, with the policy or by its name.
type Functions struct {
	limiter.Decider // nil: there is no function for its other methods
	Q               Querier
	Now             func() time.Time
	EndsAt          bool                 // aligned windows by their end
	ByName          bool                 // by a policy's name, while policies and overrides change
	Store           func(limiter.Policy) // by name: stores it if it is another than the last
}

// kinds are the library's errors by the functions' SQLSTATE.
var kinds = map[string]error{"22023": limiter.ErrInvalid, "0A000": limiter.ErrUnsupported, "P0002": limiter.ErrNoReservation, "55000": limiter.ErrReservationEnded}

func kindOf(err error) error {
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && kinds[pg.Code] != nil {
		return fmt.Errorf("%w: %w", kinds[pg.Code], err)
	}
	return err
}

// row collects the only row of a call.
func row[T any](ctx context.Context, q Querier, sql string, args ...any) (v T, err error) {
	rows, err := q.Query(ctx, sql, args...)
	if err == nil {
		v, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[T])
	}
	return v, kindOf(err)
}

func (f *Functions) call(ctx context.Context, op string, p limiter.Policy, key string, cost float64) (limiter.Result, error) {
	sql, args := f.text(op, p, key, cost, 0)
	return resultOf(ctx, f.Q, op, sql, args)
}

// text returns the call of a verb's function.
func (f *Functions) text(op string, p limiter.Policy, key string, cost, ttl float64) (string, []any) {
	now := f.Now()
	if f.Store != nil {
		f.Store(p)
		return namedCall("pglimit", p.Name, op, key, cost, cmp.Or(ttl, 3), &now)
	}
	var endsAt *time.Time
	if f.EndsAt && p.Aligned {
		end := now.Truncate(p.Period).Add(p.Period) // Unix times and Go's zero time are whole minutes apart
		endsAt = &end
	}
	return functionCall(p, op, key, cost, &now, endsAt, ttl)
}

func (f *Functions) AllowN(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	return f.call(ctx, "allow", p, key, n)
}

func (f *Functions) AllowUpTo(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	return f.call(ctx, "allow_up_to", p, key, n)
}

func (f *Functions) Check(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	return f.call(ctx, "check", p, key, n)
}

func (f *Functions) Charge(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	return f.call(ctx, "charge", p, key, n)
}

func (f *Functions) Refund(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	return f.call(ctx, "refund", p, key, n)
}

func (f *Functions) Block(ctx context.Context, p limiter.Policy, key string, d time.Duration) error {
	_, err := f.call(ctx, "block", p, key, d.Seconds())
	return err
}

func (f *Functions) Unblock(ctx context.Context, p limiter.Policy, key string) error {
	_, err := f.call(ctx, "unblock", p, key, 0)
	return err
}

func (f *Functions) Reset(ctx context.Context, p limiter.Policy, key string) error {
	_, err := f.call(ctx, "reset", p, key, 0)
	return err
}

func (f *Functions) Reserve(ctx context.Context, in limiter.Request, ttl time.Duration) (limiter.Reservation, error) {
	sql, args := f.text("reserve", in.Policy, in.Key, in.Cost, ttl.Seconds())
	return reserveBy(ctx, f.Q, sql, args)
}

func (f *Functions) Settle(ctx context.Context, id string, units float64) (limiter.Result, error) {
	return SettleByFunction(ctx, f.Q, id, units, f.Now())
}

func (f *Functions) Cancel(ctx context.Context, id string) error {
	_, err := row[struct{ Void *string }](ctx, f.Q, `SELECT pglimit.cancel($1, $2)::text`, id, f.Now())
	return err
}

// SettleByFunction settles a reservation.
func SettleByFunction(ctx context.Context, q Querier, id string, units float64, now time.Time) (limiter.Result, error) {
	settled, err := row[struct {
		FunctionResult
		Replayed, Expired bool
	}](ctx, q, `SELECT * FROM pglimit.settle($1, $2, $3)`, id, units, now)
	r := settled.Result()
	r.Replayed, r.Expired = settled.Replayed, settled.Expired
	return r, err
}

// SearchFunctions searches each of the bases: the functions and the library, on the same
// keys, answer as the library alone, and leave the same rows. functions.Q may be a pool whose
// rows cannot be compared. Default: a new database.
func SearchFunctions(t *testing.T, d search.Draw, histories int, functions Functions, bases ...limiter.Policy) {
	t.Helper()
	pool, given := functions.Q.(*pgxpool.Pool)
	if !given {
		pool = FunctionsPool(t)
		functions.Q = pool
	}
	d.Equal = true
	Search(t, d, histories, func(t *testing.T) func(*search.History) search.Subject {
		return func(*search.History) search.Subject {
			s, config := NewSubject(t)
			f := functions
			config.IdempotencyTTL = 0 // as the functions have it
			f.Now = s.Clock.Now
			if f.ByName {
				var stored limiter.Policy
				f.Store = func(p limiter.Policy) {
					if p != stored {
						StorePolicy(t, pool, p, false)
						stored = p
					}
				}
				inMemory := s.Apply
				s.Apply = func(edit limiter.PolicyEdit) error {
					for _, o := range edit.SetOverrides {
						storeOverride(t, pool, o)
					}
					for _, o := range edit.DeleteOverrides {
						Exec(t, pool, `DELETE FROM pglimit_override WHERE policy = $1 AND key = $2`, o.Policy, o.Key)
					}
					return inMemory(edit)
				}
			}
			s.Alike = func(_ *search.Step, got, want limiter.Result) bool {
				if want.Shadow { // the functions let it pass at once
					got.Delay = want.Delay
				}
				return common(got) == common(want)
			}
			if !f.EndsAt && !given { // a window with the caller's end has no period
				s.Rows = func() (string, error) { return rowsOf(pool, s.Prefix) }
			}
			s.Model = func() search.Subject {
				m, config := NewSubject(t)
				m.Clock, config.Now, config.IdempotencyTTL = s.Clock, s.Clock.Now, 0
				m.Ways = search.By(NewLimiter(t, pool, config))
				if s.Rows != nil {
					m.Rows = func() (string, error) { return rowsOf(pool, m.Prefix) }
				}
				return m
			}
			s.Ways = append([]search.Way{{Decider: &f}}, search.By(NewLimiter(t, pool, config))...)
			return s
		}
	}, bases...)
}

// common keeps the fields of a Result that the functions return too.
func common(r limiter.Result) limiter.Result {
	return limiter.Result{Allowed: r.Allowed, Granted: r.Granted, Remaining: r.Remaining, Level: r.Level, RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter,
		Delay: r.Delay, Reason: r.Reason, Replayed: r.Replayed, Expired: r.Expired, Shadowed: r.Shadowed}
}

// rowsOf returns the rows of policies whose names begin with a prefix, but for that, with
// columns that the answers do not show, such as when a row may be deleted.
func rowsOf(pool *pgxpool.Pool, prefix string) (all string, err error) {
	var tables []string
	for _, a := range append(limiter.Algorithms(), "reservation") {
		tables = append(tables, fmt.Sprintf(`
			SELECT '%[1]s ' || (to_jsonb(t) - 'id' || jsonb_build_object('policy', substr(t.policy, length($1) + 1)))::text AS line
			FROM pglimit_%[1]s AS t WHERE starts_with(t.policy, $1)`, a))
	}
	err = pool.QueryRow(context.Background(), `SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (`+strings.Join(tables, " UNION ALL ")+`) AS lines`, prefix).Scan(&all)
	return all, err
}

// storeOverride writes an override of a key.
func storeOverride(t testing.TB, pool *pgxpool.Pool, o limiter.Override) {
	t.Helper()
	var until *time.Time
	if !o.Until.IsZero() {
		until = &o.Until
	}
	Exec(t, pool, `INSERT INTO pglimit_override (policy, key, limit_units, burst, shadow, unlimited, until) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (policy, key) DO UPDATE SET limit_units = $3, burst = $4, shadow = $5, unlimited = $6, until = $7`,
		o.Policy, o.Key, o.Limit, o.Burst, o.Shadow, o.Unlimited, until)
}
