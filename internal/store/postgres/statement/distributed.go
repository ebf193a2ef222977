package statement

import "github.com/pglimit/pglimit/internal/store/postgres/exec"

// The statements about reservations that no Table has.
func init() {
	exec.Distribute(Queries.ReservationByIdempotency)
	exec.DistributeMany(Queries.ReservationsDue)
	exec.Distribute(Queries.ReservationLocked)
	exec.Distribute(Queries.ReservationForget)
	exec.Distribute(Queries.ReservationConfirm)
	exec.Distribute(exec.WithoutRow(Queries.ReservationsFree))
}
