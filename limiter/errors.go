package limiter

import (
	"github.com/pglimit/pglimit/internal/store"
)

// Errors that the methods return, for errors.Is. The driver's error is wrapped too, for
// errors.As. FailOpen lists those that it leaves as they are.
var (
	// ErrInvalid: the policy, key, cost or duration is not valid. Nothing was written.
	ErrInvalid = store.ErrInvalid
	// ErrUnsupported: the method has no meaning for the policy's algorithm or for this
	// kind of limiter.
	ErrUnsupported = store.ErrUnsupported
	// ErrUnavailable: the database is away, did not answer within Config.Timeout, or the
	// circuit breaker is open (Config.BreakAfter). A statement that was in flight may or
	// may not have been counted. The message says if the database answered other requests
	// meanwhile, if this process was too busy to read answers, or if others used all
	// connections of the pool.
	ErrUnavailable = store.ErrUnavailable
	// ErrOverloaded: too many callers are waiting for the database (Config.MaxWaiting),
	// Config.Timeout ended before the request's turn came or while others used all
	// connections of the pool, several tries met conflicts, or all keys of a NewMemory are in
	// use (Config.MaxKeys). Nothing was consumed.
	ErrOverloaded = store.ErrOverloaded
	// ErrLocked: another transaction has locked the key's row for longer than
	// Config.Timeout. Nothing was consumed. It is an ErrUnavailable too.
	ErrLocked = store.ErrLocked
	// ErrNoReservation: no reservation has that ID, or it expired more than
	// Config.IdempotencyTTL ago. Nothing was changed.
	ErrNoReservation = store.ErrNoReservation
	// ErrReservationEnded: the reservation was settled, with other units, or cancelled
	// before. Nothing was changed.
	ErrReservationEnded = store.ErrReservationEnded
	// ErrNoTicket: no attempt with that ID is under way. It was reported before, its time to
	// live ended and it counted as failed, or there was a Reset. Nothing was changed. After it
	// a Succeeded must not count as a login.
	ErrNoTicket = store.ErrNoTicket
	// ErrNoSlot: no slot with that ID is held. It was released before, its time to live ended,
	// or there was a Reset. Nothing was changed. After it others may hold what the slot held.
	ErrNoSlot = store.ErrNoSlot
	// ErrClosed: the limiter was closed.
	ErrClosed = store.ErrClosed
	// ErrMisconfigured: any other error of the database or its driver. Someone must change a
	// setting: rights, a password, a database's name, a read-only server, an encoding, a
	// connection pooler, or missing tables. The message has the next step. Nothing was
	// counted, unless an answer could not be read.
	ErrMisconfigured = store.ErrMisconfigured
	// ErrNotMigrated: the tables do not exist or are not in the search_path. It is an
	// ErrMisconfigured too.
	ErrNotMigrated = store.ErrNotMigrated
	// ErrRetryTx: the caller's transaction met a concurrent change, a deadlock or a lock
	// timeout (SQLSTATE 40001, 40P01, 55P03). It wraps the driver's error. Roll the
	// transaction back and run it again, as RunTx does.
	ErrRetryTx = store.ErrRetryTx
	// ErrCommitUnknown: RunTx sent the commit, but no answer came, since the connection
	// failed or the context ended. The transaction may or may not be committed, so RunTx
	// does not run it again. It wraps the driver's error. Look for a row that the
	// transaction wrote. A request with an IdempotencyKey can be made again in a new
	// transaction, and counts once.
	ErrCommitUnknown = store.ErrCommitUnknown
)
