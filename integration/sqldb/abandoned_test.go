package sqldb

import (
	"context"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// TestAbandonedTransactionsReturnConnections: a caller whose context ends at any moment of
// an AllowAll leaves no connection in use.
func TestAbandonedTransactionsReturnConnections(t *testing.T) {
	bed.OverDrivers(t, func(t *testing.T, driver string) {
		db := bed.ConnectSQL(t, driver, bed.NewDatabase(t))
		db.SetMaxOpenConns(4)
		l := bed.NewSQL(t, db, nil)
		p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1e6, Period: time.Hour}
		ended := 0
		for i := range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*25*time.Microsecond)
			if _, err := l.AllowAll(ctx, p.Request("a", 1), p.Request("b", 1)); err != nil {
				ended++
			}
			cancel()
		}
		if ended == 0 {
			t.Error("no context ended early")
		}
		bed.Eventually(t, "no connection is in use", func(context.Context) (bool, error) { return db.Stats().InUse == 0, nil })
	})
}
