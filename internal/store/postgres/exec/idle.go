package exec

import (
	"strconv"
	"sync/atomic"
	"time"
)

// A client can vanish without closing its connection: its machine or its network fails.
// The server notices that after minutes or hours, and keeps the rows of an open
// transaction locked until then. So each of our own transactions limits how long its
// session may be idle. Its statements follow each other at once, and its caller has gone
// after its Timeout.
const (
	minIdle = time.Second
	maxIdle = 30 * time.Second
)

// NoIdle leaves it to the server how long a session may be idle in a transaction. Behind a
// router of shards a transaction has no server yet that a limit could be set on.
const NoIdle time.Duration = 0

// Idle returns how long a session may be idle in a transaction of a caller with this
// timeout, which is none if not positive: twice as long, from 1 to 30 s.
func Idle(timeout time.Duration) time.Duration {
	if timeout <= 0 || timeout > maxIdle/2 {
		return maxIdle
	}
	return max(minIdle, 2*timeout)
}

// idleLimit is how transactions begin that limit how long their session may be idle. A
// shorter limit of the session, its role or its database stays. That is looked up once a
// minute, before a transaction: a SET costs next to nothing, and a SELECT of the lesser of
// the two made an AllowAll over database/sql 15 % slower.
type idleLimit struct {
	set, question string

	start  time.Time
	asksAt atomic.Int64 // when to look again, since start
	longer atomic.Bool  // the session's limit is, or there is none
}

func newIdleLimit(most time.Duration) *idleLimit {
	if most == NoIdle {
		return &idleLimit{}
	}
	ms := strconv.FormatInt(most.Milliseconds(), 10)
	const own = "current_setting('idle_in_transaction_session_timeout'::text)"
	return &idleLimit{
		set: "set local idle_in_transaction_session_timeout = " + ms, start: time.Now(),
		question: "select where " + own + " = '0'::text or " + own + "::interval > '" + ms + " ms'::interval",
	}
}

// looksEvery is how long the session's limit is taken as read.
const looksEvery = time.Minute

// Question implements sqldb.Beginning.
func (l *idleLimit) Question() string {
	if time.Since(l.start) < time.Duration(l.asksAt.Load()) {
		return ""
	}
	return l.question
}

// Answer implements sqldb.Beginning.
func (l *idleLimit) Answer(longer bool) {
	l.longer.Store(longer)
	l.asksAt.Store(int64(time.Since(l.start) + looksEvery))
}

// setting returns the statement that follows a begin; none if the session's limit is
// shorter.
func (l *idleLimit) setting() string {
	if l.longer.Load() {
		return l.set
	}
	return ""
}

// Text implements sqldb.Beginning.
func (l *idleLimit) Text() string {
	if set := l.setting(); set != "" {
		return beginning + "; " + set
	}
	return beginning
}

// beginning begins a transaction at read committed, whatever the database's default.
const beginning = "begin isolation level read committed"
