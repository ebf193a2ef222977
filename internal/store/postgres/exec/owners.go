package exec

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
)

// ownersRest is how long the owners of the tables are taken as read. Another role can
// create a schema at any time that comes first in the search_path of open connections.
const ownersRest = 5 * time.Second

// Owners refuses statements while pglimit's tables in the search_path have several owners:
// then another role may have put a table in front of the migrated one. The catalog is read
// before the first statement, and before one every few seconds. Safe for concurrent use.
type Owners struct {
	start time.Time
	next  atomic.Int64          // time of the next look, since start; 0: none was made
	found atomic.Pointer[error] // by the last look
}

// NewOwners returns Owners that have not been read.
func NewOwners() *Owners { return &Owners{start: time.Now()} }

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

// look returns what the last look found, and looks again by runner if it is time.
func (o *Owners) look(ctx context.Context, runner Runner) error {
	now, next := int64(time.Since(o.start)), o.next.Load()
	if next != 0 && (now < next || !o.next.CompareAndSwap(next, now+int64(ownersRest))) {
		return *o.found.Load()
	}
	var several string
	err := runner.Run(ctx, Statement, func(tx db.DBTX) (err error) {
		several, err = db.New().TableOwners(ctx, tx)
		return err
	})
	if err != nil {
		o.next.Store(next)
		return err
	}
	if several != "" {
		err = fmt.Errorf("%w: %s", store.ErrOwners, several)
	}
	o.found.Store(&err)
	o.next.Store(now + int64(ownersRest))
	return err
}
