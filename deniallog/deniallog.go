// Package deniallog counts denials by policy and key in the table pglimit_denial.
//
//	denials, err := deniallog.New(pool, nil)
//	l, err := limiter.New(pool, &limiter.Config{DenialLog: denials})
//	go denials.Run(ctx) // writes what was counted, until ctx ends
package deniallog

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/limiter"
)

// Defaults and bounds of Config's fields, which each field's comment repeats.
const (
	defaultLogInterval = 5 * time.Second
	minLogInterval     = time.Second
	maxLogInterval     = 10 * time.Minute
	defaultLogKeys     = 10_000

	denialsOfOne = 1000 // counts in one statement
	flushTimeout = 10 * time.Second
	lastFlush    = 5 * time.Second
	logSlot      = time.Minute // of pglimit_denial
)

// Config sets up a Log. The zero value and nil have the defaults that each field names.
type Config struct {
	// Interval is the time between two flushes of Run, varied at random by up to a tenth.
	// Default: 5s. Range: 1s to 10m.
	Interval time.Duration
	// Keys is the largest number of keys that are counted in a minute, or between two
	// flushes if that is longer. Default: 10,000. Each takes about 500 bytes and twice its
	// length. The denials of further keys are counted together for each policy, under the
	// key "", and those of as many further policies under the policy "other".
	Keys int
	// KeySecret is the limiters' Config.KeySecret, of at least 16 bytes: the table then has
	// hashed keys. Default: nil, the table has the keys as they are. limiter.New refuses a Log
	// whose KeySecret is not its own.
	KeySecret []byte
	// Logger gets a warning if counts cannot be written, at most one a minute. Default:
	// slog.Default().
	Logger *slog.Logger
}

// Log counts denials by policy and key in memory, and adds the counts to the table
// pglimit_denial every few seconds. Set it as limiter.Config.DenialLog, and run Run in a
// goroutine. The table has one row for each policy, key, algorithm and minute by the
// database's clock, with the reasons. It shows who is denied now and was lately, and why.
// The janitor merges rows of more than an hour ago by ten minutes, deletes those of more
// than a day, and bounds their number: see janitor.Config.KeepDenials. One Log may serve
// several limiters. It is safe for concurrent use.
//
//   - Every denial of Allow, AllowN, Do, AllowUpTo, Wait, DoWait, Reserve, ReserveUpTo, AllowAll
//     and WaitAll is counted: remembered ones, those of blocked keys and in transactions, and
//     those that a shadow policy lets pass. A denied Check is not, since it requests nothing.
//     Of an AllowAll only the requests count that denied it; if it was ErrOverloaded, all.
//   - With a KeySecret the table has the key's HMAC, as the others.
//   - A denial that is counted costs no statement, and no allocation for a key that was
//     denied since the last flush. A flush without denials sends nothing.
//   - A crash of the process loses what it has not written, a few seconds. If the answer to
//     a write is lost, its counts may be added twice.
//   - A count whose row another transaction has locked is set aside for the next flush. The
//     others are written.
type Log struct {
	write   func(context.Context, db.DenialsAddParams) error
	config  Config
	running atomic.Bool

	flushing sync.Mutex
	warned   time.Time // of the last warning; guarded by flushing

	mu     sync.Mutex
	counts map[loggedKey]*denialCount
	keyed  int                    // of counts, those with a key
	seen   map[loggedKey]struct{} // keys that were counted since began
	began  time.Time
}

// loggedKey identifies a count by the caller's key.
type loggedKey struct {
	policy    string
	algorithm algorithm.Name // whose table has the row
	key       string
}

// denialCount is the denials of one key since the last flush.
type denialCount struct {
	denials, shadowed, blocked, aboveBurst, overloaded int64

	units       float64
	last, retry int64 // microseconds; retry is 0 if no request ever fits
}

// New returns a Log that writes to the database of pool, which the caller closes. It sends
// nothing and starts no goroutine. It returns limiter.ErrInvalid for a nil pool or a field of
// config that is not valid.
func New(pool *pgxpool.Pool, config *Config) (*Log, error) {
	if pool == nil {
		return nil, store.Invalid("pool", "nil", "open one with pgxpool.New")
	}
	return open(exec.PGX(pool, exec.Idle(flushTimeout)), config)
}

// NewSQL is New for database/sql, with any PostgreSQL driver. The caller closes db.
func NewSQL(db *sql.DB, config *Config) (*Log, error) {
	if db == nil {
		return nil, store.Invalid("db", "nil", "open one with sql.Open")
	}
	return open(exec.SQL(db, exec.Idle(flushTimeout)), config)
}

func open(connections exec.Connections, config *Config) (*Log, error) {
	d, err := newLog(nil, config)
	if err != nil {
		return nil, err
	}
	runner := exec.NewPool(connections, exec.NewCache(exec.Warn(d.config.Logger)))
	queries := db.New()
	d.write = func(ctx context.Context, p db.DenialsAddParams) error {
		return runner.Run(ctx, exec.Transaction, func(tx db.DBTX) error {
			deadline, _ := ctx.Deadline()
			// A tenth of the time leaves some for other groups. On Citus lock_timeout would not reach the
			// node that waits.
			if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", max(1, time.Until(deadline).Milliseconds()/10))); err != nil {
				return err
			}
			return queries.DenialsAdd(ctx, tx, p)
		})
	}
	return d, nil
}

func newLog(write func(context.Context, db.DenialsAddParams) error, config *Config) (*Log, error) {
	d := &Log{write: write, counts: map[loggedKey]*denialCount{}, seen: map[loggedKey]struct{}{}}
	if config != nil {
		d.config = *config
	}
	c := &d.config
	c.Interval, c.Keys = cmp.Or(c.Interval, defaultLogInterval), cmp.Or(c.Keys, defaultLogKeys)
	if c.Interval < minLogInterval || c.Interval > maxLogInterval {
		return nil, store.Invalid("deniallog.Config.Interval", c.Interval.String(), "must be from 1s to 10m, or 0 for 5s")
	}
	if c.Keys < 0 {
		return nil, store.Invalid("deniallog.Config.Keys", fmt.Sprint(c.Keys), "must not be negative; 0 is 10,000")
	}
	if n := len(c.KeySecret); c.KeySecret != nil && n < keys.MinSecret {
		return nil, store.Invalid("deniallog.Config.KeySecret", fmt.Sprintf("of %d bytes", n), fmt.Sprintf("must have at least %d bytes; use that of limiter.Config.KeySecret, or nil", keys.MinSecret))
	}
	c.KeySecret = bytes.Clone(c.KeySecret)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return d, nil
}

// counted are the verbs of requests.
var counted = map[limiter.Verb]bool{
	limiter.VerbAllow: true, limiter.VerbAllowUpTo: true, limiter.VerbAllowAll: true,
	limiter.VerbWait: true, limiter.VerbWaitAll: true, limiter.VerbReserve: true, limiter.VerbReserveUpTo: true,
}

// Observe counts the denial of a request, and ignores all else. A nil Log counts nothing.
func (d *Log) Observe(_ context.Context, o limiter.Observation) {
	in, r := &o.Request, &o.Result
	if d == nil || r.Reason == "" || !counted[o.Verb] {
		return
	}
	one := denialCount{denials: 1, units: in.Cost, last: r.At.UnixMicro()}
	if r.Shadowed {
		one.shadowed = 1
	}
	switch {
	case r.Reason == limiter.ReasonOverload:
		one.overloaded = 1
	case r.Reason == limiter.ReasonBlocked:
		one.blocked = 1
	case r.RetryAfter == limiter.Never:
		one.aboveBurst = 1
	}
	if one.overloaded == 0 && r.RetryAfter != limiter.Never {
		one.retry = one.last + r.RetryAfter.Microseconds()
	}
	k := loggedKey{in.Policy.Name, algorithm.Name(in.Policy.Algorithm).Table(), in.Key}
	if r.Reason == limiter.ReasonKeys { // the key may be made up
		k.key = ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.addTo(k, &one, false)
}

// Matches reports whether the log's keys are those of a Limiter with that KeySecret.
func (d *Log) Matches(secret []byte) bool { return d == nil || bytes.Equal(d.config.KeySecret, secret) }

// hasRoom reports whether k, which has no count, may get one.
func (d *Log) hasRoom(k loggedKey, again bool) bool {
	_, seen := d.seen[k]
	return d.keyed < d.config.Keys && (again || seen || len(d.seen) < d.config.Keys)
}

// addTo adds n to the count of k, or of k's policy if there are too many keys. again: n was
// taken before. d.mu is locked.
func (d *Log) addTo(k loggedKey, n *denialCount, again bool) {
	c := d.counts[k]
	if c == nil && k.key != "" && !d.hasRoom(k, again) {
		k.key = ""
		c = d.counts[k]
	}
	if c == nil && k.key == "" && len(d.counts)-d.keyed >= d.config.Keys {
		k.policy = "other"
		c = d.counts[k]
	}
	if c == nil {
		// The caller's texts may share memory with large ones or reused buffers.
		k.policy, k.key = strings.Clone(k.policy), strings.Clone(k.key)
		if k.key != "" {
			d.keyed++
			if !again {
				d.seen[k] = struct{}{}
			}
		}
		c = new(denialCount)
		d.counts[k] = c
	}
	c.add(n)
}

// Run flushes after each interval until ctx ends, and once more then, for at most five
// seconds. It returns nil. It logs a failed flush and tries again after the next interval.
// It returns an error only if Run of this log is already running.
func (d *Log) Run(ctx context.Context) error {
	if !d.running.CompareAndSwap(false, true) {
		return errors.New("pglimit: the denial log: Run is already running: call it once, or create another log")
	}
	defer d.running.Store(false)
	for ctx.Err() == nil {
		wait := time.NewTimer(time.Duration(float64(d.config.Interval) * (0.9 + 0.2*rand.Float64())))
		select {
		case <-ctx.Done():
			wait.Stop()
		case <-wait.C:
			_ = d.flush(ctx, flushTimeout)
		}
	}
	_ = d.flush(context.WithoutCancel(ctx), lastFlush)
	return nil
}

// Flush writes what was counted since the last flush. If it returns an error, what was not
// written is counted on.
func (d *Log) Flush(ctx context.Context) error { return d.flush(ctx, flushTimeout) }

func (d *Log) flush(ctx context.Context, timeout time.Duration) error {
	d.flushing.Lock()
	defer d.flushing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// A group with a row that another transaction has locked is halved, down to that row. The
	// halves come after all other groups.
	groups := slices.Collect(slices.Chunk(d.take(), denialsOfOne))
	left, failed := 0, error(nil)
	for ; len(groups) > 0; groups = groups[1:] {
		some := groups[0]
		err := ctx.Err()
		if err == nil {
			err = d.write(ctx, denialParams(some))
		}
		if half := len(some) / 2; half > 0 && ctx.Err() == nil && exec.Waited(err) {
			groups = append(groups, some[:half], some[half:])
		} else if err != nil {
			d.giveBack(some)
			if left += len(some); failed == nil {
				failed = exec.Translate(err, false)
			}
			if !exec.Waited(err) {
				cancel() // the others would fail as well
			}
		}
	}
	if failed == nil {
		return nil
	}
	if now := time.Now(); !errors.Is(failed, context.Canceled) && (d.warned.IsZero() || now.Sub(d.warned) >= time.Minute) {
		d.warned = now
		d.config.Logger.WarnContext(ctx, "pglimit: counts of denials could not be written; they are kept for the next flush", "keys", left, "error", failed)
	}
	return fmt.Errorf("pglimit: write counts of denials: %w", failed)
}

// loggedRow is a count as it is written.
type loggedRow struct {
	loggedKey
	stored string // the key in the table
	*denialCount
}

// take takes all counts, in lock order.
func (d *Log) take() []loggedRow {
	d.mu.Lock()
	counts := d.counts
	d.counts, d.keyed = map[loggedKey]*denialCount{}, 0
	if now := time.Now(); now.Sub(d.began) >= logSlot {
		d.seen, d.began = map[loggedKey]struct{}{}, now
	}
	d.mu.Unlock()
	rows := make([]loggedRow, 0, len(counts))
	for k, n := range counts {
		row := loggedRow{loggedKey: k, denialCount: n}
		if k.key != "" { // that of the sums is no key
			row.stored = keys.Stored(k.key, d.config.KeySecret)
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b loggedRow) int {
		return cmp.Or(strings.Compare(a.policy, b.policy), strings.Compare(a.stored, b.stored), cmp.Compare(a.algorithm, b.algorithm))
	})
	return rows
}

// add adds n.
func (c *denialCount) add(n *denialCount) {
	c.denials += n.denials
	c.shadowed += n.shadowed
	c.blocked += n.blocked
	c.aboveBurst += n.aboveBurst
	c.overloaded += n.overloaded
	c.units += n.units
	c.last, c.retry = max(c.last, n.last), max(c.retry, n.retry)
}

// giveBack counts on rows that were not written.
func (d *Log) giveBack(rows []loggedRow) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, row := range rows {
		d.addTo(row.loggedKey, row.denialCount, true)
	}
}

// denialParams returns the arrays of one statement.
func denialParams(rows []loggedRow) (p db.DenialsAddParams) {
	for _, row := range rows {
		p.Policies = append(p.Policies, row.policy)
		p.Keys = append(p.Keys, row.stored)
		p.Algorithms = append(p.Algorithms, string(row.algorithm))
		p.Denials = append(p.Denials, row.denials)
		p.Shadowed = append(p.Shadowed, row.shadowed)
		p.Blocked = append(p.Blocked, row.blocked)
		p.AboveBurst = append(p.AboveBurst, row.aboveBurst)
		p.Overloaded = append(p.Overloaded, row.overloaded)
		p.Units = append(p.Units, row.units)
		p.LastDeniedAtUs = append(p.LastDeniedAtUs, row.last)
		p.RetryAtUs = append(p.RetryAtUs, row.retry)
	}
	return p
}
