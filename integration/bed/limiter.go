package bed

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// MustAll is must for AllowAll.
func MustAll(t testing.TB) func(limiter.Results, error) limiter.Results {
	return func(all limiter.Results, err error) limiter.Results {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
}

// Must fails the test on an error.
func Must(t testing.TB) func(limiter.Result, error) limiter.Result {
	t.Helper()
	return func(r limiter.Result, err error) limiter.Result {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// OK is must for any type.
func OK[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Variants is every algorithm in each of its forms, with limit units per
// period and that burst.
func Variants(limit float64, period time.Duration) []limiter.Policy {
	var all []limiter.Policy
	for _, a := range limiter.Algorithms() {
		all = append(all, limiter.Policy{Algorithm: a, Limit: limit, Period: period})
		if a == limiter.LeakyBucket {
			all = append(all, limiter.Policy{Algorithm: a, Limit: limit, Period: period, Tick: period / 4})
		}
		if a == limiter.FixedWindow {
			all = append(all, limiter.Policy{Algorithm: a, Limit: limit, Period: period, Aligned: true})
		}
	}
	for i := range all {
		all[i].Name = fmt.Sprintf("variant-%d", i)
	}
	return all
}

// Variant names a policy's algorithm and form.
func Variant(p limiter.Policy) string {
	switch {
	case p.Tick != 0:
		return string(p.Algorithm) + " in ticks"
	case p.Aligned:
		return string(p.Algorithm) + " aligned"
	}
	return string(p.Algorithm)
}

// NewLimiter is patient where config says nothing of Timeout.
func NewLimiter(t testing.TB, pool *pgxpool.Pool, config *limiter.Config) *limiter.Limiter {
	t.Helper()
	l, err := limiter.New(pool, WithPatience(config))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// WithPatience is config with a Timeout that a busy machine keeps too, unless it
// has one of its own.
func WithPatience(config *limiter.Config) *limiter.Config {
	var all limiter.Config
	if config != nil {
		all = *config
	}
	if all.Timeout == 0 {
		all.Timeout = time.Minute
	}
	return &all
}

// NewSQL is NewLimiter over database/sql.
func NewSQL(t testing.TB, db *sql.DB, config *limiter.Config) *limiter.Limiter {
	t.Helper()
	l, err := limiter.NewSQL(db, WithPatience(config))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Near reports whether two levels are equal but for what leaks during a test.
func Near(a, b float64) bool { return a-b < 1e-3 && b-a < 1e-3 }
