package janitor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// attempts is how often a statement is sent that collides with others.
const attempts = 5

// SQLSTATEs that matter here.
const (
	undefinedTable       = "42P01"
	serializationFailure = "40001" // where the default isolation is repeatable read or stricter
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
)

// statement sends one statement. It may take no longer than the lease lasts,
// and is sent again if it collided with others.
func (j *Janitor) statement(ctx context.Context, send func(context.Context) error) error {
	for try := 1; ; try++ {
		limited, cancel := context.WithTimeout(ctx, j.cfg.Lease)
		err := send(limited)
		late := limited.Err() != nil && ctx.Err() == nil
		cancel()

		var answer *pgconn.PgError
		errors.As(err, &answer)
		switch {
		case err == nil:
			return nil
		case late:
			return fmt.Errorf("it took longer than the lease, %v: look for what holds the table, lower BatchSize or raise Lease: %w", j.cfg.Lease, err)
		case answer == nil:
			return err
		case answer.Code == undefinedTable:
			return fmt.Errorf("%w: run `pglimit migrate up`, or look at search_path", err)
		case try == attempts || !slices.Contains([]string{serializationFailure, deadlockDetected, lockNotAvailable}, answer.Code):
			return err
		}
	}
}
