package sqldb

import (
	"database/sql"
	"errors"
	"sync"
	"time"
)

// renewals limits how many connections are given up because they are read-only: as many
// in a second as the pool had at its beginning. A server that stays read-only is then not
// connected to for each request.
type renewals struct {
	mu    sync.Mutex
	begin time.Time
	left  int
}

// take reports whether one more of open connections may be given up.
func (r *renewals) take(open int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.begin.IsZero() || now.Sub(r.begin) >= time.Second {
		r.begin, r.left = now, open
	}
	r.left--
	return r.left >= 0
}

// more reports whether others may be given up after this.
func (r *renewals) more() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left > 0
}

// Renew reports whether another try of a statement that failed because its connection is
// read-only may get another connection. The failed one has been closed, unless as many as
// the pool had were closed within a second.
func (p *Pool) Renew() bool { return p.renewals.more() }

// done returns c to the pool after its use, which ended in err. If the connection turned
// out to be read-only, it is closed: after a failover a new one may lead to the primary.
func (p *Pool) done(c *sql.Conn, err error) {
	const readOnlyTransaction = "25006"
	var answer interface{ SQLState() string }
	if errors.As(err, &answer) && answer.SQLState() == readOnlyTransaction && p.renewals.take(p.db.Stats().OpenConnections) {
		discard(c)
		return
	}
	_ = c.Close()
}
