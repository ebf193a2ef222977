package testworld

import (
	"context"
	"database/sql"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/janitor"
)

// NewJanitor makes a janitor over a *pgxpool.Pool or a *sql.DB. It logs to the test.
func NewJanitor(t *testing.T, over any, config *janitor.Config) *janitor.Janitor {
	t.Helper()
	if config == nil {
		config = &janitor.Config{}
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	var j *janitor.Janitor
	var err error
	if pool, ok := over.(*pgxpool.Pool); ok {
		j, err = janitor.New(pool, config)
	} else {
		j, err = janitor.NewSQL(over.(*sql.DB), config)
	}
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// SweepOften runs a janitor until the test ends, at most a hundred sweeps a second.
// Without a pause it would keep a processor from the test.
func SweepOften(t *testing.T, pool *pgxpool.Pool) {
	j, err := janitor.New(pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if _, err := j.Sweep(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}
