package bed

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// StorePolicy writes a policy into the table pglimit_policy, from which the SQL functions
// read it by its name.
func StorePolicy(t testing.TB, pool *pgxpool.Pool, p limiter.Policy, askers bool) {
	t.Helper()
	seconds := func(d time.Duration) *float64 {
		if d == 0 {
			return nil
		}
		s := d.Seconds()
		return &s
	}
	number := func(n float64) *float64 {
		if n == 0 {
			return nil
		}
		return &n
	}
	Exec(t, pool, `DELETE FROM pglimit_policy WHERE name = $1`, p.Name)
	Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, burst, tick_s, block_for_s, aligned, calendar, time_zone, shadow, askers)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
		p.Name, string(p.Algorithm), p.Limit, seconds(p.Period), number(p.Burst), p.Tick.Seconds(), p.BlockFor.Seconds(), p.Aligned, string(p.Calendar), p.TimeZone, p.Shadow, askers)
}

// CallNamed calls the function of a verb by a policy's name. A reservation is for 3 s; the
// other verbs return only a Result. schema is pglimit or pglimit_ask; a clock is for the
// first only.
func CallNamed(ctx context.Context, q Querier, schema, name, op, key string, cost float64, now *time.Time) (limiter.Reservation, error) {
	sql, args := namedCall(schema, name, op, key, cost, 3, now)
	if op == "reserve" {
		return reserveBy(ctx, q, sql, args)
	}
	r, err := resultOf(ctx, q, op, sql, args)
	return limiter.Reservation{Result: r}, err
}

// namedCall returns the function call of a verb by a policy's name.
func namedCall(schema, name, op, key string, cost, ttl float64, now *time.Time) (string, []any) {
	args := []any{name, key}
	switch op {
	case "unblock", "reset":
		now = nil // they read no clock
	case "block":
		args = append(args, math.Round(cost*1e6)/1e6)
	case "reserve":
		args = append(args, cost, ttl)
	default:
		args = append(args, cost)
	}
	if now != nil {
		args = append(args, *now)
	}
	list := "$1"
	for i := range args[1:] {
		list += fmt.Sprintf(", $%d", i+2)
	}
	return fmt.Sprintf("SELECT * FROM %s.%s(%s)", schema, op, list), args
}

// reservationRow is a row of pglimit.reservation.
type reservationRow struct {
	FunctionResult
	ID      *string
	Expires *time.Time
}

// reserveBy makes the call of a function that reserves.
func reserveBy(ctx context.Context, q Querier, sql string, args []any) (made limiter.Reservation, err error) {
	r, err := row[reservationRow](ctx, q, sql, args...)
	switch {
	case err != nil:
		return made, err
	case r.Allowed != (r.ID != nil) || r.Allowed != (r.Expires != nil):
		return made, fmt.Errorf("allowed %v, reservation %v, expires at %v", r.Allowed, r.ID, r.Expires)
	case r.Allowed:
		made.ID, made.Expires = *r.ID, *r.Expires
	}
	made.Result = r.Result()
	return made, nil
}
