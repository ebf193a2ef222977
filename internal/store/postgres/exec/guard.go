package exec

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/shards"
	"github.com/pglimit/pglimit/internal/store"
)

// Breaker is a circuit breaker of a Pool. After several failures in a row it opens:
// statements fail immediately, except one every rest, which probes.
type Breaker struct {
	after int64 // failures in a row
	rest  int64 // microseconds
	clock func() int64

	answers  atomic.Int64
	failures atomic.Int64
	until    atomic.Int64 // time of the next probe while open; 0 while closed
	last     atomic.Pointer[error]
}

// NewBreaker returns a Breaker that opens after a number of failures in a row, for rest. clock
// returns microseconds.
func NewBreaker(after int64, rest time.Duration, clock func() int64) *Breaker {
	return &Breaker{after: after, rest: rest.Microseconds(), clock: clock}
}

// note counts the outcome of a statement or transaction.
func (b *Breaker) note(ctx context.Context, err error) {
	store.AwaitEnd(ctx, err)
	switch {
	case answered(err):
		b.answers.Add(1)
		if b.failures.Load() != 0 || b.until.Load() != 0 {
			b.failures.Store(0)
			b.until.Store(0)
		}
	case errors.As(err, new(*noConnection)), err == ErrNoPipeline, err == store.ErrElsewhere: // nothing was sent, or it goes on
	case ctx.Err() == nil || store.EndedByTimeout(ctx) && !store.Starved():
		if b.failures.Add(1) >= b.after {
			b.last.Store(&err)
			b.until.Store(b.clock() + b.rest)
		}
	}
}

// Answers returns how many statements the server has answered.
func (b *Breaker) Answers() int64 { return b.answers.Load() }

// open reports whether the breaker is open, even if a probe is due.
func (b *Breaker) open() bool { return b.until.Load() != 0 }

// admit admits all while closed, and one probe every rest while open: the caller that
// moves until.
func (b *Breaker) admit() error {
	until := b.until.Load()
	if until == 0 {
		return nil
	}
	now := b.clock()
	wait := until - now
	if wait <= 0 || wait > b.rest { // the latter if the clock was set back
		if b.until.CompareAndSwap(until, now+b.rest) {
			return nil
		}
		wait = b.rest
	}
	return b.refusal(wait)
}

// Refuses returns an error while the breaker is open and no probe is due, so that callers
// need not wait for the probe.
func (b *Breaker) Refuses() error {
	if until := b.until.Load(); until != 0 {
		if wait := until - b.clock(); wait > 0 && wait <= b.rest {
			return b.refusal(wait)
		}
	}
	return nil
}

func (b *Breaker) refusal(wait int64) error {
	return fmt.Errorf("the circuit breaker is open (Config.BreakAfter) and tries again in %v; the last failure: %w", time.Duration(wait)*time.Microsecond, *b.last.Load())
}

// CheckEncoding returns an ErrMisconfigured if the server would read this program's UTF-8 in
// another encoding: then a key would have another row than in other programs. SQL_ASCII converts
// nothing, so it will do if the database stores UTF-8 or any bytes. "" is not known.
func CheckEncoding(client, server string) error {
	if client == "UTF8" || client == "" || client == "SQL_ASCII" && (server == "UTF8" || server == client) {
		return nil
	}
	return fmt.Errorf("%w: client_encoding is %s, and a key that is not ASCII would be stored as another: add client_encoding=UTF8 to the database's URL, or set it by ALTER ROLE or ALTER DATABASE", store.ErrMisconfigured, client)
}

// checkConn is CheckEncoding for a connection of pgx, nil: none. It sends nothing.
func checkConn(c *pgx.Conn) error {
	if c == nil {
		return nil
	}
	reported := c.PgConn().ParameterStatus
	return CheckEncoding(reported("client_encoding"), reported("server_encoding"))
}

// ownersRest is how long the owners of the tables are taken as read. Another role can
// create a schema at any time that comes first in the search_path of open connections.
const ownersRest = 5 * time.Second

// Owners refuses statements while pglimit's tables in the search_path have several owners:
// then another role may have put a table in front of the migrated one. It also knows whether
// the tables are distributed, and looks at the session's encoding. The catalog is read before
// the first statement, and before one every few seconds. Safe for concurrent use.
type Owners struct {
	sharding store.Sharding
	start    time.Time
	next     atomic.Int64               // time of the next look, since start; 0: none was made
	found    atomic.Pointer[error]      // by the last look
	shards   atomic.Pointer[shards.Map] // by the last look; nil: the tables are not distributed
}

// NewOwners returns Owners that have not been read.
func NewOwners(s store.Sharding) *Owners { return &Owners{sharding: s, start: time.Now()} }

// Shards returns the shards of the tables, or nil if these are not distributed.
func (o *Owners) Shards() *shards.Map {
	if o == nil {
		return nil
	}
	return o.shards.Load()
}

// forget makes the next look read the catalog. It reports true.
func (o *Owners) forget() bool {
	if o != nil {
		o.next.Store(0)
	}
	return o != nil
}

// Guard returns a Runner that runs what the owners allow by inner, a Runner in the caller's
// transaction.
func (o *Owners) Guard(inner Runner) Runner { return guarded{inner, o} }

type guarded struct {
	inner  Runner
	owners *Owners
}

// Run is Runner's.
func (g guarded) Run(ctx context.Context, m Mode, f func(db.DBTX) error) error {
	if err := g.owners.look(ctx, g.inner); err != nil {
		return err
	}
	return g.inner.Run(ctx, m, f)
}

// look returns what the last look found, and looks again by runner if it is time. Behind a
// router it does not look: that would find any one of the servers.
func (o *Owners) look(ctx context.Context, runner Runner) error {
	if o.sharding == store.ShardingRouter {
		return nil
	}
	now, next := int64(time.Since(o.start)), o.next.Load()
	if next != 0 && (now < next || !o.next.CompareAndSwap(next, now+int64(ownersRest))) {
		return *o.found.Load()
	}
	var owners db.TableOwnersRow
	var distributed *shards.Map
	err := runner.Run(ctx, Statement, func(tx db.DBTX) (err error) {
		// Without Citus it is one statement. Behind a pooler that loses prepared statements another
		// without parameters could be executed instead of it.
		if owners, err = db.New().TableOwners(ctx, tx); err == nil {
			err = CheckEncoding(owners.ClientEncoding, owners.ServerEncoding)
		}
		if err == nil && owners.Citus && (o.sharding == store.ShardingAuto || o.sharding == store.ShardingCitus) {
			distributed, err = shards.Read(ctx, tx)
		}
		return err
	})
	if err != nil {
		o.next.Store(next)
		return err
	}
	switch {
	case owners.Several != "":
		err = fmt.Errorf("%w: %s", store.ErrOwners, owners.Several)
	case distributed == nil && o.sharding == store.ShardingCitus:
		err = store.ErrNotDistributed
	}
	o.shards.Store(distributed)
	o.found.Store(&err)
	o.next.Store(now + int64(ownersRest))
	return err
}
