package limiter

import (
	"github.com/pglimit/pglimit/internal/store"
)

// Errors that the verbs return, to be told apart with errors.Is. Whatever the
// database said is wrapped too, for errors.As.
var (
	// ErrInvalid: the policy, key, cost or duration is not valid. Nothing was
	// written. It never passes through FailOpen.
	ErrInvalid = store.ErrInvalid
	// ErrUnsupported: the verb has no meaning for the policy's algorithm, or
	// not for this kind of limiter.
	ErrUnsupported = store.ErrUnsupported
	// ErrUnavailable: the database could not be asked, or not within
	// Config.Timeout, or was not because it has not answered for a while, see
	// Config.BreakAfter. Whether a statement in flight was counted is unknown.
	ErrUnavailable = store.ErrUnavailable
	// ErrOverloaded: too many callers wait for the database already
	// (Config.BatchWaiting). Nothing was consumed.
	ErrOverloaded = store.ErrOverloaded
	// ErrNoReservation: there is no hold with that ID, or its ttl was over longer than
	// Config.IdempotencyTTL ago. Nothing was changed.
	ErrNoReservation = store.ErrNoReservation
	// ErrReservationEnded: the hold was settled, with other units, or cancelled before.
	// Nothing was changed.
	ErrReservationEnded = store.ErrReservationEnded
	// ErrClosed: the limiter was closed. It never passes through FailOpen.
	ErrClosed = store.ErrClosed
	// ErrNotMigrated: the tables are not there, or not in the search_path.
	ErrNotMigrated = store.ErrNotMigrated
	// ErrRetryTx: the caller's transaction met a concurrent change, a deadlock
	// or a lock timeout (40001, 40P01, 55P03), of which the driver's error tells.
	// Roll it back and run it again.
	ErrRetryTx = store.ErrRetryTx
)
