package statement

import (
	"context"
	"reflect"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

func init() {
	exec.DistributeTexts(func(tell func(string, reflect.Type)) {
		for _, a := range append(algorithm.Tables[:], algorithm.Balance) {
			for _, s := range Of(a).all() {
				tell(s.text, s.row)
			}
			tell(exec.Text(func(tx db.DBTX) { _, _ = Keys(context.Background(), tx, a, "") }), reflect.TypeFor[int64]())
		}
	})
	exec.DistributeLater(others)
}

// others distributes the statements that no Table has.
func others() {
	exec.Distribute(Queries.ReservationByIdempotency)
	exec.DistributeMany(Queries.ReservationsDue)
	exec.Distribute(Queries.ReservationEstimate)
	exec.Distribute(Queries.ReservationLocked)
	exec.Distribute(Queries.ReservationHold)
	exec.Distribute(Queries.ReservationForget)
	exec.Distribute(Queries.ReservationConfirm)
	exec.Distribute(exec.WithoutRow(Queries.ReservationsFree))
	exec.Distribute(Queries.KeysPermit)
	exec.Distribute(exec.WithoutRow(Queries.KeysBegin))
}
