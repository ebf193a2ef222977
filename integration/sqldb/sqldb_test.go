package sqldb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

func TestSQLVectors(t *testing.T) {
	bed.OverDrivers(t, func(t *testing.T, driver string) {
		db := bed.ConnectSQL(t, driver, bed.NewDatabase(t))
		conformance.Run(t, "../testdata/checkout/testdata/vectors", func(t *testing.T, clock *conformance.Clock) *limiter.Limiter {
			return bed.NewSQL(t, db, &limiter.Config{Now: clock.Now, DisableDenyCache: true})
		})
	})
}

// TestSQLNeverOverAdmits has 64 goroutines request one cold key.
func TestSQLNeverOverAdmits(t *testing.T) {
	bed.OverDrivers(t, func(t *testing.T, driver string) {
		address := bed.NewDatabase(t)
		var ls []*limiter.Limiter
		for range bed.Pools {
			ls = append(ls, bed.NewSQL(t, bed.ConnectSQL(t, driver, address), nil))
		}
		for _, p := range bed.Variants(bed.CapUnit, 1000*time.Hour) {
			for round := range 4 {
				if got := doubleStorm(t, ls, p, fmt.Sprint("key", round)); got != bed.CapUnit {
					t.Errorf("%s, round %d: admitted %v units of %v", bed.Variant(p), round, got, bed.CapUnit)
				}
			}
		}
	})
}

// doubleStorm is two storms on one key.
func doubleStorm(t *testing.T, ls []*limiter.Limiter, p limiter.Policy, key string) float64 {
	var admitted [2]float64
	var wg sync.WaitGroup
	for i := range admitted {
		wg.Go(func() { admitted[i] = bed.Storm(t, ls, p, key) })
	}
	wg.Wait()
	return admitted[0] + admitted[1]
}

// TestSQLStricterDefaultIsolation: as TestDecideStricterDefaultIsolation.
func TestSQLStricterDefaultIsolation(t *testing.T) {
	bed.OverDrivers(t, func(t *testing.T, driver string) {
		address := bed.NewDatabase(t)
		isolated(t, bed.Connect(t, address), "repeatable read")
		l := bed.NewSQL(t, bed.ConnectSQL(t, driver, address), nil)
		other := bed.NewSQL(t, bed.ConnectSQL(t, driver, address), nil)
		for _, p := range bed.Variants(bed.CapUnit, 1000*time.Hour) {
			if got := bed.Storm(t, []*limiter.Limiter{l, other}, p, "k"); got != bed.CapUnit {
				t.Errorf("%s: admitted %v of %v", bed.Variant(p), got, bed.CapUnit)
			}
		}
	})
}

// TestSQLRefundOfNothing: there is no row, and the clock is still read.
func TestSQLRefundOfNothing(t *testing.T) {
	bed.OverDrivers(t, func(t *testing.T, driver string) {
		l := bed.NewSQL(t, bed.ConnectSQL(t, driver, bed.NewDatabase(t)), nil)
		for _, p := range bed.Variants(10, time.Hour) {
			if p.Algorithm == limiter.LeakyBucketQueue {
				continue
			}
			if r := bed.Must(t)(l.Refund(t.Context(), p, "k", 1)); r.Granted != 0 || r.Remaining != 10 || r.At.Before(conformance.Epoch) {
				t.Errorf("%s: %+v", bed.Variant(p), r)
			}
		}
	})
}

// TestSQLWait queues for a turn, and gives a cancelled place back.
func TestSQLWait(t *testing.T) {
	bed.OverDrivers(t, func(t *testing.T, driver string) {
		l := bed.NewSQL(t, bed.ConnectSQL(t, driver, bed.NewDatabase(t)), nil)
		p := limiter.Policy{Name: "p", Algorithm: limiter.LeakyBucketQueue, Limit: 1, Period: 1000 * time.Hour, Burst: 3}
		if err := l.Wait(t.Context(), p, "k", 1); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		waits := make(chan error, 1)
		go func() { waits <- l.Wait(ctx, p, "k", 1) }()
		bed.Eventually(t, "it has its place", func(ctx context.Context) (bool, error) {
			r, err := l.Check(ctx, p, "k", 0)
			return r.Level > 1.5, err
		})
		cancel()
		if err := <-waits; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		bed.Eventually(t, "the place was given back", func(ctx context.Context) (bool, error) {
			r, err := l.Check(ctx, p, "k", 0)
			return bed.Near(r.Level, 1), err
		})
		var denied *limiter.DeniedError
		if err := l.Wait(t.Context(), p, "k", 3); !errors.As(err, &denied) {
			t.Errorf("above what fits: %v", err)
		}
	})
}

// TestMigrateUpSQL makes the tables over each driver, on one connection,
// which stays open.
func TestMigrateUpSQL(t *testing.T) {
	bed.OverDrivers(t, func(t *testing.T, driver string) {
		address := bed.EmptyDatabase(t)
		db := bed.ConnectSQL(t, driver, address)
		db.SetMaxOpenConns(1)
		l := bed.NewSQL(t, db, nil)
		p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}
		if _, err := l.Allow(t.Context(), p, "k"); !errors.Is(err, limiter.ErrNotMigrated) {
			t.Errorf("before: %v", err)
		}
		for range 2 {
			if err := migrations.UpSQL(t.Context(), db); err != nil {
				t.Fatal(err)
			}
		}
		if r := bed.Must(t)(l.Allow(t.Context(), p, "k")); !r.Allowed {
			t.Errorf("%+v", r)
		}
		all, err := migrations.Status(t.Context(), bed.Connect(t, address))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if !m.Applied {
				t.Errorf("%d %s has not been run", m.Version, m.Name)
			}
		}
		if _, err := db.Exec("DELETE FROM " + migrations.VersionTable + " WHERE version_id > 0"); err != nil {
			t.Fatal(err)
		}
		if err := migrations.UpSQL(t.Context(), db); err == nil || !strings.Contains(err.Error(), "migrate in that way again") {
			t.Errorf("the error says not what to do: %v", err)
		}
	})
}

// TestSQLNewRefuses: the error names the invalid argument.
func TestSQLNewRefuses(t *testing.T) {
	t.Parallel()
	if _, err := limiter.NewSQL(nil, nil); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "db nil: open one") {
		t.Errorf("no db: %v", err)
	}
	if _, err := limiter.NewSQL(bed.ConnectSQL(t, "pgx", bed.Server().URL()), &limiter.Config{BatchStatements: -1}); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "Config.BatchStatements -1") {
		t.Errorf("a negative number: %v", err)
	}
}
