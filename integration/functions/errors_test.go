package functions

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
)

// TestFunctionsBadArguments sends every parameter just outside its bounds: the error names
// parameter, value and next step, and no row is written. Just inside is allowed.
func TestFunctionsBadArguments(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	const (
		units    = "must be from 1e-9 to 2^53"
		seconds  = "must be seconds"
		positive = "must be positive and at most 2^53"
		limits   = "limit_units => 5, period_s => 60"
	)
	for call, want := range map[string]string{
		`token_bucket('Login', 'k', ` + limits + `)`:                                                   `name is 'Login': must match ^[a-z0-9][a-z0-9_.-]{0,63}$`,
		`token_bucket('', 'k', ` + limits + `)`:                                                        `name is '': must match`,
		`token_bucket(NULL, 'k', ` + limits + `)`:                                                      `name is NULL: must match`,
		`token_bucket(E'a\n', 'k', ` + limits + `)`:                                                    `must match`,
		`token_bucket('É', 'k', ` + limits + `)`:                                                       `name is 'É': must match`,
		`token_bucket(repeat('a', 65), 'k', ` + limits + `)`:                                           `must match`,
		`token_bucket('n', '', ` + limits + `)`:                                                        `key is '': must not be empty or NULL`,
		`token_bucket('n', NULL, ` + limits + `)`:                                                      `key is NULL: must not be empty or NULL`,
		`token_bucket('n', repeat('é', 513), ` + limits + `)`:                                          `is longer than 1024 bytes`,
		`token_bucket('n', 'k', 0, ` + limits + `)`:                                                    `cost is 0: ` + positive,
		`token_bucket('n', 'k', -1, ` + limits + `)`:                                                   `cost is -1: ` + positive,
		`token_bucket('n', 'k', NULL, ` + limits + `)`:                                                 `cost is NULL: ` + positive,
		`token_bucket('n', 'k', 'NaN', ` + limits + `)`:                                                `cost is NaN: ` + positive,
		`token_bucket('n', 'k', 'Infinity', ` + limits + `)`:                                           `cost is Infinity: ` + positive,
		`token_bucket('n', 'k', 9007199254740994, ` + limits + `)`:                                     `cost is 9.007199254740994e+15: ` + positive,
		`token_bucket('n', 'k', 4e-9, ` + limits + `)`:                                                 `cost is 4e-09: must be at least 5e-09, a billionth of the burst`,
		`token_bucket('n', 'k')`:                                                                       `limit_units is NULL: ` + units,
		`token_bucket('n', 'k', limit_units => 0, period_s => 1)`:                                      `limit_units is 0: ` + units,
		`token_bucket('n', 'k', limit_units => -1, period_s => 1)`:                                     `limit_units is -1: ` + units,
		`gcra('n', 'k', limit_units => 'NaN', period_s => 1)`:                                          `limit_units is NaN: ` + units,
		`gcra('n', 'k', limit_units => 'Infinity', period_s => 1)`:                                     `limit_units is Infinity: ` + units,
		`gcra('n', 'k', limit_units => 9e-10, period_s => 1)`:                                          `limit_units is 9e-10: ` + units,
		`gcra('n', 'k', limit_units => 5)`:                                                             `period_s is NULL: ` + seconds,
		`gcra('n', 'k', limit_units => 5, period_s => 0)`:                                              `period_s is 0: ` + seconds,
		`gcra('n', 'k', limit_units => 5, period_s => -60)`:                                            `period_s is -60: ` + seconds,
		`gcra('n', 'k', limit_units => 5, period_s => 'NaN')`:                                          `period_s is NaN: ` + seconds,
		`gcra('n', 'k', limit_units => 5, period_s => 'Infinity')`:                                     `period_s is Infinity: ` + seconds,
		`gcra('n', 'k', limit_units => 5, period_s => 1e308)`:                                          `period_s is 1e+308: ` + seconds,
		`gcra('n', 'k', limit_units => 5, period_s => 1e-320)`:                                         `period_s is 1e-320: ` + seconds,
		`gcra('n', 'k', limit_units => 5, period_s => 1.0000001)`:                                      `period_s is 1.0000001: ` + seconds,
		`gcra('n', 'k', limit_units => 5, period_s => 3155760001)`:                                     `period_s is 3155760001: ` + seconds,
		`gcra('n', 'k', ` + limits + `, burst => 0)`:                                                   `burst is 0: ` + units,
		`gcra('n', 'k', ` + limits + `, burst => 'NaN')`:                                               `burst is NaN: ` + units,
		`gcra('n', 'k', ` + limits + `, block_for_s => -1)`:                                            `block_for_s is -1: ` + seconds,
		`gcra('n', 'k', ` + limits + `, block_for_s => 'NaN')`:                                         `block_for_s is NaN: ` + seconds,
		`gcra('n', 'k', ` + limits + `, block_for_s => 1e-7)`:                                          `block_for_s is 1e-07: ` + seconds,
		`leaky_bucket('n', 'k', ` + limits + `, tick_s => -1)`:                                         `tick_s is -1: ` + seconds,
		`leaky_bucket('n', 'k', ` + limits + `, tick_s => 1e-7)`:                                       `tick_s is 1e-07: ` + seconds,
		`gcra('n', 'k', ` + limits + `, now => 'infinity')`:                                            `now is 'infinity': must be from 1970 to 9999`,
		`gcra('n', 'k', ` + limits + `, now => '1969-12-31')`:                                          `must be from 1970 to 9999`,
		`fixed_window('n', 'k', limit_units => 5)`:                                                     `period_s is NULL: ` + seconds,
		`fixed_window('n', 'k', ` + limits + `, ends_at => '9999-1-1')`:                                `period_s is 60: excludes ends_at`,
		`fixed_window('n', 'k', limit_units => 5, ends_at => now(), aligned => true)`:                  `aligned is true: excludes ends_at`,
		`fixed_window('n', 'k', limit_units => 5, ends_at => '2026-01-01+00', now => '2026-01-01+00')`: `must be after the clock`,
		`fixed_window('n', 'k', limit_units => 5, ends_at => '2126-01-03+00', now => '2026-01-01+00')`: `must be after the clock`,
		`fixed_window('n', 'k', limit_units => 5, ends_at => 'infinity')`:                              `ends_at is 'infinity': must be after the clock`,
		`fixed_window('n', 'k', limit_units => 5, ends_at => '-infinity')`:                             `ends_at is '-infinity': must be after the clock`,
		`check_with('bucket', 'n', 'k', ` + limits + `)`:                                               `algorithm is 'bucket': must be one of leaky_bucket, leaky_bucket_queue, token_bucket, gcra, fixed_window, sliding_window_counter, sliding_window_log`,
		`check_with(NULL, 'n', 'k', ` + limits + `)`:                                                   `algorithm is NULL: must be one of`,
		`check_with('gcra', 'n', 'k', -1, ` + limits + `)`:                                             `cost is -1: must be 0, or positive`,
		`check_with('gcra', 'n', 'k', 4e-9, ` + limits + `)`:                                           `cost is 4e-09: must be at least 5e-09`,
		`charge_with('fixed_window', 'n', 'k', ` + limits + `, burst => 6)`:                            `burst is 6: fixed_window has no burst apart from limit_units`,
		`charge_with('gcra', 'n', 'k', ` + limits + `, tick_s => 1)`:                                   `tick_s is 1: is for leaky_bucket only`,
		`charge_with('gcra', 'n', 'k', ` + limits + `, aligned => true)`:                               `aligned is true: is for fixed_window only`,
		`charge_with('gcra', 'n', 'k', limit_units => 5, ends_at => '9999-1-1')`:                       `is for fixed_window only`,
		`charge_with('gcra', 'n', 'k', 0, ` + limits + `)`:                                             `cost is 0: ` + positive,
		`refund_with('leaky_bucket_queue', 'n', 'k', ` + limits + `)`:                                  `refund is not for leaky_bucket_queue`,
		`allow_up_to_with('gcra', 'n', 'k', 0, ` + limits + `)`:                                        `cost is 0: ` + positive,
		`block_with('gcra', 'n', 'k', 0)`:                                                              `for_s is 0: ` + seconds,
		`block_with('gcra', 'n', 'k', NULL)`:                                                           `for_s is NULL: ` + seconds,
		`block_with('gcra', 'n', '', 1)`:                                                               `key is ''`,
		`reserve_with('leaky_bucket_queue', 'n', 'k', ` + limits + `, ttl_s => 60)`:                    `reserve is not for leaky_bucket_queue`,
		`reserve_with('gcra', 'n', 'k', ` + limits + `)`:                                               `ttl_s is NULL: ` + seconds,
		`reserve_with('gcra', 'n', 'k', ` + limits + `, ttl_s => 0.5)`:                                 `ttl_s is 0.5: ` + seconds,
		`reserve_with('gcra', 'n', 'k', ` + limits + `, ttl_s => 'NaN')`:                               `ttl_s is NaN: ` + seconds,
		`settle('token_bucket:aaaaaaaaaaaaaaaaaaaaaaaaaa:n:aw', -1)`:                                   `units is -1: must be from 0 to 2^53`,
		`settle('token_bucket:aaaaaaaaaaaaaaaaaaaaaaaaaa:n:aw', 'NaN')`:                                `units is NaN: must be from 0 to 2^53`,
		`settle('token_bucket:aaaaaaaaaaaaaaaaaaaaaaaaaa:n:aw', NULL)`:                                 `units is NULL: must be from 0 to 2^53`,
		`settle('token_bucket:aaaaaaaaaaaaaaaaaaaaaaaaaa:n:aw', 1)`:                                    `there is no reservation 'token_bucket:aaaaaaaaaaaaaaaaaaaaaaaaaa:n:aw'`,
		`cancel('token_bucket:aaaaaaaaaaaaaaaaaaaaaaaaaa:n:aw')`:                                       `there is no reservation 'token_bucket:aaaaaaaaaaaaaaaaaaaaaaaaaa:n:aw'`,
		`settle('order 7', 1)`:                                                                         `reservation is 'order 7': is not the ID of a reservation`,
		`settle(NULL, 1)`:                                                                              `reservation is NULL: is not the ID of a reservation`,
		`cancel('token_bucket:a')`:                                                                     `reservation is 'token_bucket:a': is not the ID of a reservation`,
		`cancel('leaky_bucket_queue:aaaaaaaaaaaaaaaaaaaaaaaaaa:n:aw')`:                                 `is not the ID of a reservation`,
		`attempt_with('N', 'k', 3, 60, block_for_s => 10)`:                                             `name is 'N'`,
		`attempt_with('n', '', 3, 60, block_for_s => 10)`:                                              `key is ''`,
		`attempt_with('n', 'k', 2.5, 60, block_for_s => 10)`:                                           `limit_units is 2.5: must be whole`,
		`attempt_with('n', 'k', 3, 60)`:                                                                `block_for_s is NULL: `,
		`attempt_with('n', 'k', 3, 'NaN', block_for_s => 10)`:                                          `period_s is NaN: `,
		`attempt_with('n', 'k', 3, 60, 101, 10)`:                                                       `burst is 101: must be whole, from 1 to 100`,
		`attempt_with('n', 'k', 3, 60, block_for_s => 10, block_growth => 0.5)`:                        `block_growth is 0.5: must be from 1 to 1000`,
		`attempt_with('n', 'k', 3, 60, block_for_s => 10, block_max_s => 9)`:                           `block_max_s is 9: `,
		`attempt_with('n', 'k', 3, 60, block_for_s => 61)`:                                             `block_max_s is 0: `,
		`attempt_with('n', 'k', 3, 60, block_for_s => 10, ttl_s => 0.5)`:                               `ttl_s is 0.5: `,
		`attempt_with('n', 'k', 3, 60, block_for_s => 10, source => repeat('x', 1025))`:                `and more: is longer than 1024 bytes`,
		`succeeded('token_bucket:aaaaaaaaaaaaaaaaaaaaaaaaaa:n:aw')`:                                    `is not the ID of an attempt`,
		`failed(NULL)`: `ticket is NULL: is not the ID of an attempt`,
		`failed('attempts:aaaaaaaaaaaaaaaaaaaaaaaaaa:n:aw')`: `no such attempt is under way: 'attempts:aaaaaaaaaaaaaaaaaaaaaaaaaa:n:aw'`,
		`cancel('attempts:aaaaaaaaaaaaaaaaaaaaaaaaaa:n:aw')`: `is not the ID of a reservation`,
		`charge_with('attempts', 'n', 'k', ` + limits + `)`:  `a policy of attempts has no such function`,
		`unblock_with('no', 'n', 'k')`:                       `algorithm is 'no'`,
		`reset_with('gcra', 'N', 'k')`:                       `name is 'N'`,
	} {
		_, err := pool.Exec(t.Context(), `SELECT * FROM pglimit.`+call)
		var pg *pgconn.PgError
		code := "22023"
		switch {
		case strings.Contains(want, "is not for leaky_bucket_queue"), strings.Contains(want, "no such function"):
			code = "0A000"
		case strings.Contains(want, "there is no reservation"), strings.Contains(want, "no such attempt"):
			code = "P0002"
		}
		if !errors.As(err, &pg) || pg.Code != code || !strings.HasPrefix(pg.Message, "pglimit: ") || !strings.Contains(pg.Message, want) || pg.Hint == "" {
			t.Errorf("%s: got %v (hint %q), want %s with %q and a hint", call, err, hintOf(pg), code, want)
		}
	}
	if got := testworld.Contents(t, pool); strings.Count(got, "no rows") != 6 {
		t.Errorf("something was written:\n%s", got)
	}
	for _, call := range []string{
		`token_bucket(repeat('a', 64), repeat('é', 512), 9007199254740992, 9007199254740992, 3155760000, 1e-9, 3155760000)`,
		`token_bucket('0', ' ', 1e-9, 1e-9, 0.000001)`,
		`leaky_bucket('n', 'k', ` + limits + `, burst => NULL, tick_s => NULL, block_for_s => NULL, now => NULL)`,
		`leaky_bucket('n', 'k', ` + limits + `, tick_s => 3155760000)`,
		`gcra('n', 'k', ` + limits + `, now => '1970-01-01+00')`,
		`gcra('n', 'k', limit_units => 5, period_s => 1.1, now => '9999-12-31 23:59:59.999999+00')`,
		`gcra('n', 'k', limit_units => 5, period_s => 86399.999999)`,
		`fixed_window('n', 'k', limit_units => 5, period_s => 60, aligned => NULL, ends_at => NULL)`,
		`charge_with('fixed_window', 'n', 'k', ` + limits + `, burst => 5)`,
		`check_with('gcra', 'n', 'k', 0, ` + limits + `)`,
	} {
		testworld.Exec(t, pool, `SELECT * FROM pglimit.`+call)
	}
}

func hintOf(pg *pgconn.PgError) string {
	if pg == nil {
		return ""
	}
	return pg.Hint
}

// sqlState returns the code of PostgreSQL's error, or empty.
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
