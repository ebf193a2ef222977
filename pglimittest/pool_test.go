package pglimittest

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// TestPoolsAreApart: each call makes a database with the tables, and a test's end drops it.
func TestPoolsAreApart(t *testing.T) {
	t.Parallel()
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 1, Period: time.Hour}
	var names []string
	t.Run("tests", func(t *testing.T) {
		for _, pool := range []*pgxpool.Pool{Pool(t), Pool(t)} {
			l, err := limiter.New(pool, &limiter.Config{Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			if r, err := l.Allow(t.Context(), p, "k"); err != nil || !r.Allowed {
				t.Errorf("the first request: %+v, %v", r, err)
			}
			names = append(names, pool.Config().ConnConfig.Database)
		}
	})
	if len(names) != 2 || names[0] == names[1] {
		t.Fatalf("the databases are %q", names)
	}
	const list = "SELECT count(*)::text FROM pg_database WHERE datname IN ('%s', '%s')"
	if left := query(t, common.server.URL(), fmt.Sprintf(list, names[0], names[1])); left != "0" {
		t.Errorf("%s databases are left", left)
	}
}

// TestCommonServerEnds: it ends once, with its templates, and does not start again.
func TestCommonServerEnds(t *testing.T) {
	t.Parallel()
	var own commonServer
	template, err := own.template()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := own.template(); again != template || err != nil {
		t.Errorf("another template: %v", err)
	}
	for range 2 {
		if err := own.close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := own.template(); err == nil {
		t.Error("it started again")
	}
	if err := new(commonServer).close(); err != nil {
		t.Errorf("one that was not started: %v", err)
	}
}
