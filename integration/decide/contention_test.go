package decide

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// ways are the drivers to a database, each over four pools.
func ways(t *testing.T, url string) map[string][]bed.Allow {
	t.Helper()
	all := map[string][]bed.Allow{}
	for range 4 {
		all["pgx"] = append(all["pgx"], bed.NewLimiter(t, bed.Connect(t, url), nil).AllowN)
		for _, driver := range bed.SQLDrivers {
			name := "database/sql of " + driver
			all[name] = append(all[name], bed.NewSQL(t, bed.ConnectSQL(t, driver, url), nil).AllowN)
		}
	}
	return all
}

// TestDecideNeverOverAdmits has 32 goroutines request 1 to 3 units of one cold key until
// none is left. Exactly the limit is admitted, over each driver and by the SQL functions,
// without and with a janitor that sweeps a hundred times a second.
func TestDecideNeverOverAdmits(t *testing.T) {
	t.Parallel()
	for _, withJanitor := range []bool{false, true} {
		t.Run(fmt.Sprintf("janitor=%v", withJanitor), func(t *testing.T) {
			t.Parallel()
			url := bed.FunctionsPool(t).Config().ConnString()
			if withJanitor {
				bed.SweepOften(t, bed.Connect(t, url))
			}
			all := ways(t, url)
			clients := bed.Connect(t, url, func(c *pgxpool.Config) { c.MaxConns = bed.Callers })
			all["SQL functions"] = []bed.Allow{func(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
				return bed.CallFunction(ctx, clients, p, "allow", key, n, nil)
			}}
			for name, way := range all {
				for _, p := range bed.Variants(bed.CapUnit, 1000*time.Hour) {
					for round := range 5 {
						if got := bed.Storm(t, way, p, fmt.Sprint(name, round)); got != bed.CapUnit {
							t.Fatalf("%s, %s, round %d: admitted %v units of %v", name, bed.Variant(p), round, got, bed.CapUnit)
						}
					}
				}
			}
		})
	}
}

// TestDecideStricterDefaultIsolation: a database whose default isolation is repeatable
// read or serializable still decides.
func TestDecideStricterDefaultIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			url := bed.NewDatabase(t)
			bed.Exec(t, bed.Connect(t, url), `DO $$ BEGIN EXECUTE format(
				'ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), '`+level+`'); END $$`)
			for name, way := range ways(t, url) {
				for _, p := range bed.Variants(bed.CapUnit, 1000*time.Hour) {
					if got := bed.Storm(t, way, p, name); got != bed.CapUnit {
						t.Errorf("%s, %s: admitted %v of %v", name, bed.Variant(p), got, bed.CapUnit)
					}
				}
			}
		})
	}
}
