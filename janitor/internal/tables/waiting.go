package tables

import (
	"context"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/shards"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

func init() { exec.Distribute(db.New().SweepWaiting) }

// Waiting reads what waits for the next sweep, in all shards.
func Waiting(ctx context.Context, tx db.DBTX, p db.SweepWaitingParams) (all db.SweepWaitingRow, err error) {
	m, err := shards.Read(ctx, tx)
	if err != nil {
		return all, err
	}
	all.OldestUs = p.NowUs
	for _, s := range Shards(m) {
		one, err := db.New().SweepWaiting(ctx, s.Of(tx), p)
		if err != nil {
			return all, err
		}
		all.DueRows = min(all.DueRows+one.DueRows, p.MaxRows)
		all.ExpiredReservations = min(all.ExpiredReservations+one.ExpiredReservations, p.MaxRows)
		all.OpenReservations = min(all.OpenReservations+one.OpenReservations, p.MaxRows)
		all.OldestUs = min(all.OldestUs, one.OldestUs)
	}
	return all, nil
}
