package testworld

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// Functions sends calls by the SQL functions, with the policy or by its name.
type Functions struct {
	verbs.Limiter // has the methods that have no function
	Q             Querier
	Now           func() time.Time     // nil: the database's clock
	EndsAt        bool                 // aligned windows by their end
	ByName        bool                 // by a policy's name, while policies and overrides change
	Store         func(limiter.Policy) // by name: stores it if it is another than the last
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

// at returns the clock's reading, nil for the database's.
func (f *Functions) at() *time.Time {
	if f.Now == nil {
		return nil
	}
	now := f.Now()
	return &now
}

// arguments are the named arguments of a function.
type arguments struct {
	names  []string
	values []any
}

func (a *arguments) add(name string, value any) {
	a.values = append(a.values, value)
	a.names = append(a.names, fmt.Sprintf("%s => $%d", name, len(a.values)))
}

func (a *arguments) addIf(set bool, name string, value any) {
	if set {
		a.add(name, value)
	}
}

// text returns the call of a verb's function, with only those arguments that the policy
// sets.
func (f *Functions) text(op string, in limiter.Request, ttl float64) (string, []any) {
	p, key, cost := in.Policy, in.Key, in.Cost
	now, function, a := f.at(), op, new(arguments)
	switch {
	case f.ByName:
	case op == "allow":
		function = string(p.Algorithm)
	case op == "attempt", op == "acquire":
		function += "_with"
	default:
		function += "_with"
		a.add("algorithm", string(p.Algorithm))
	}
	a.add("name", p.Name)
	a.add("key", key)
	switch op {
	case "block":
		a.add("for_s", math.Round(cost*1e6)/1e6)
	case "unblock":
	case "reset":
		now = nil // it reads no clock
	default:
		a.addIf(op != "usage" && op != "attempt", "cost", cost)
		a.addIf(ttl != 0, "ttl_s", ttl)
		a.addIf(in.Estimate, "estimate", true)
		a.addIf(in.Floor != 0, "floor", in.Floor)
		if !f.ByName {
			f.numbers(a, p, now)
		}
	}
	a.addIf(now != nil, "now", now)
	return fmt.Sprintf("pglimit.%s(%s)", function, strings.Join(a.names, ", ")), a.values
}

// numbers adds the policy's own.
func (f *Functions) numbers(a *arguments, p limiter.Policy, now *time.Time) {
	a.add("limit_units", p.Limit)
	if f.EndsAt && p.Aligned {
		p.Aligned = false
		a.add("ends_at", now.Truncate(p.Period).Add(p.Period)) // Unix times and Go's zero time are whole minutes apart
	} else {
		a.add("period_s", p.Period.Seconds())
	}
	a.addIf(p.Burst != 0, "burst", p.Burst)
	a.addIf(p.Tick != 0, "tick_s", p.Tick.Seconds())
	a.addIf(p.Aligned, "aligned", true)
	a.addIf(p.BlockFor != 0, "block_for_s", p.BlockFor.Seconds())
	a.addIf(p.Shadow, "shadow", true)
	a.addIf(p.BlockGrowth != 0, "block_growth", p.BlockGrowth)
	a.addIf(p.BlockMax != 0, "block_max_s", p.BlockMax.Seconds())
}

// Call makes the call of a verb's function, as the methods do. Some return nothing.
func (f *Functions) Call(ctx context.Context, op string, p limiter.Policy, key string, cost float64) (limiter.Result, error) {
	return f.call(ctx, op, p.Request(key, cost))
}

func (f *Functions) call(ctx context.Context, op string, in limiter.Request) (limiter.Result, error) {
	if f.Store != nil {
		f.Store(in.Policy)
	}
	sql, args := f.text(op, in, 0)
	if op == "block" || op == "unblock" || op == "reset" {
		return limiter.Result{}, f.void(ctx, sql, args...)
	}
	r, err := row[functionRow](ctx, f.Q, "SELECT * FROM "+sql, args...)
	return r.result(), err
}

func (f *Functions) void(ctx context.Context, sql string, args ...any) error {
	_, err := row[struct{ Void *string }](ctx, f.Q, "SELECT "+sql+"::text", args...)
	return err
}

func (f *Functions) AllowN(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	return f.Call(ctx, "allow", p, key, n)
}

// Do has no function under an IdempotencyKey.
func (f *Functions) Do(ctx context.Context, in limiter.Request) (limiter.Result, error) {
	if in.IdempotencyKey != "" {
		return f.Limiter.Do(ctx, in)
	}
	return f.call(ctx, "allow", in)
}

func (f *Functions) AllowUpTo(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	return f.Call(ctx, "allow_up_to", p, key, n)
}

func (f *Functions) Check(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	if p.Algorithm == limiter.Attempts || p.Algorithm == limiter.Concurrency { // no function has it
		return f.Limiter.Check(ctx, p, key, n)
	}
	return f.Call(ctx, "check", p, key, n)
}

func (f *Functions) Charge(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	return f.Call(ctx, "charge", p, key, n)
}

// Grant has no function under an IdempotencyKey, nor with numbers.
func (f *Functions) Grant(ctx context.Context, p limiter.Policy, key string, units float64, o limiter.GrantOptions) (limiter.Result, error) {
	if !f.ByName || o.IdempotencyKey != "" {
		return f.Limiter.Grant(ctx, p, key, units, o)
	}
	if f.Store != nil {
		f.Store(p)
	}
	var expires *time.Time
	if !o.Expires.IsZero() {
		expires = &o.Expires
	}
	r, err := row[functionRow](ctx, f.Q, `SELECT * FROM pglimit.grant($1, $2, $3, $4, $5, $6, $7)`, p.Name, key, units, expires, o.Priority, o.Source, f.at())
	return r.result(), err
}

func (f *Functions) Refund(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	return f.Call(ctx, "refund", p, key, n)
}

func (f *Functions) Block(ctx context.Context, p limiter.Policy, key string, d time.Duration) error {
	_, err := f.Call(ctx, "block", p, key, d.Seconds())
	return err
}

func (f *Functions) Unblock(ctx context.Context, p limiter.Policy, key string) error {
	_, err := f.Call(ctx, "unblock", p, key, 0)
	return err
}

func (f *Functions) Reset(ctx context.Context, p limiter.Policy, key string) error {
	_, err := f.Call(ctx, "reset", p, key, 0)
	return err
}

// Reserve and ReserveUpTo have no function under an IdempotencyKey.
func (f *Functions) Reserve(ctx context.Context, in limiter.Request, ttl time.Duration) (limiter.Reservation, error) {
	if in.IdempotencyKey != "" {
		return f.Limiter.Reserve(ctx, in, ttl)
	}
	return f.hold(ctx, "reserve", in, ttl, "")
}

func (f *Functions) ReserveUpTo(ctx context.Context, in limiter.Request, ttl time.Duration) (limiter.Reservation, error) {
	if in.IdempotencyKey != "" {
		return f.Limiter.ReserveUpTo(ctx, in, ttl)
	}
	return f.hold(ctx, "reserve_up_to", in, ttl, "")
}

// hold makes a reservation, or begins an attempt from a place.
func (f *Functions) hold(ctx context.Context, op string, in limiter.Request, ttl time.Duration, from string) (made limiter.Reservation, err error) {
	if f.Store != nil {
		f.Store(in.Policy)
	}
	sql, args := f.text(op, in, ttl.Seconds())
	if from != "" {
		args = append(args, from)
		sql = fmt.Sprintf("%s, source => $%d)", strings.TrimSuffix(sql, ")"), len(args))
	}
	r, err := row[struct {
		functionRow
		ID      *string
		Expires *time.Time
	}](ctx, f.Q, "SELECT * FROM "+sql, args...)
	switch {
	case err != nil:
		return made, err
	case r.Allowed != (r.ID != nil) || r.Allowed != (r.Expires != nil):
		return made, fmt.Errorf("allowed %v, reservation %v, expires at %v", r.Allowed, r.ID, r.Expires)
	case r.Allowed:
		made.ID, made.ExpiresAt = *r.ID, *r.Expires
	}
	made.Result = r.result()
	return made, nil
}

// Usage has no limit and burst in its Result.
func (f *Functions) Usage(ctx context.Context, p limiter.Policy, key string) (u limiter.Usage, err error) {
	if p.Algorithm == limiter.Attempts || p.Algorithm == limiter.Concurrency {
		return f.Limiter.Usage(ctx, p, key)
	}
	if f.Store != nil {
		f.Store(p)
	}
	sql, args := f.text("usage", p.Request(key, 0), 0)
	r, err := row[struct {
		functionRow
		Spent, Reserved float64
		Reservations    int
		WindowEndsAt    *time.Time
	}](ctx, f.Q, "SELECT * FROM "+sql, args...)
	if p.Algorithm == limiter.Balance { // which has more
		u, err := f.Limiter.Usage(ctx, p, key)
		if err == nil && u.Spent != r.Spent {
			err = fmt.Errorf("spent is %v, of the function %v", u.Spent, r.Spent)
		}
		u.Result = r.result()
		return u, err
	}
	u = limiter.Usage{Result: r.result(), Spent: r.Spent, Reserved: r.Reserved, Reservations: r.Reservations}
	if r.WindowEndsAt != nil {
		u.WindowEndsAt = *r.WindowEndsAt
	}
	return u, err
}

func (f *Functions) Settle(ctx context.Context, id string, units float64) (limiter.Result, error) {
	settled, err := row[struct {
		functionRow
		Replayed, Expired bool
	}](ctx, f.Q, `SELECT * FROM pglimit.settle($1, $2, $3)`, id, units, f.at())
	r := settled.result()
	r.Replayed, r.Expired = settled.Replayed, settled.Expired
	return r, err
}

func (f *Functions) Cancel(ctx context.Context, id string) error {
	return f.void(ctx, `pglimit.cancel($1, $2)`, id, f.at())
}
