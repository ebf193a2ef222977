package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/internal/shards"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// Options are those of a change. A zero field takes its default.
type Options struct {
	// Batch is how many keys one transaction locks, from 1. Default: 100.
	Batch int
	// Wait is how long to try again for rows that other transactions have locked, after
	// all others are changed. Default: 10s.
	Wait time.Duration
	// LockWait is how long a transaction waits for one lock; requests for its other keys
	// wait as long. Default: 100ms, or half of the server's deadlock_timeout if that is less.
	LockWait time.Duration
	// Progress is called after each transaction with the number of targets that are done
	// or found gone, and of all. Default: nil, for none.
	Progress func(done, all int)
}

// Count is what a change did under one policy and algorithm, as JSON too.
type Count struct {
	Policy    string         `json:"policy"`
	Algorithm algorithm.Name `json:"algorithm,omitempty"`
	Rows      int64          `json:"rows"`
	// Reservations that were deleted by Forget, or that lost their units by Reset.
	Reservations int64 `json:"reservations,omitempty"`
	// What Forget deleted besides: slots of denials, marks, sums of usage, entries of ledgers, overrides, and their history.
	Denials   int64 `json:"denials,omitempty"`
	Events    int64 `json:"events,omitempty"`
	Sums      int64 `json:"sums,omitempty"`
	Entries   int64 `json:"entries,omitempty"`
	Overrides int64 `json:"overrides,omitempty"`
	History   int64 `json:"history,omitempty"`
}

// any reports whether the change did something.
func (c Count) any() bool {
	return c.Rows+c.Reservations+c.Denials+c.Events+c.Sums+c.Entries+c.Overrides+c.History > 0
}

// LockedError is the error of a change that other transactions kept from some rows. All
// other rows are changed. It is an ErrUnavailable.
type LockedError struct{ Targets []Target }

// Error names the first target.
func (e *LockedError) Error() string {
	t := e.Targets[0]
	return fmt.Sprintf("other transactions have kept %s locked, the first of policy %s, key %s: all others are changed; run it again when those have ended",
		printable.Count(len(e.Targets), "row"), t.Policy, store.Quote(t.Key))
}

// Unwrap returns ErrUnavailable.
func (e *LockedError) Unwrap() error { return store.ErrUnavailable }

// bundle is the keys of one transaction, in lock order.
type bundle struct {
	algorithm algorithm.Name
	policy    string
	keys      []string
}

// bundles splits targets. A transaction has rows of one table only, so within it the lock
// order is that of the keys.
func bundles(targets []Target, batch int, m *shards.Map) (all []bundle) {
	sorted := slices.Clone(targets)
	slices.SortFunc(sorted, Target.compare)
	sorted = slices.Compact(sorted)
	shard := func(t Target) int {
		if m == nil {
			return 0
		}
		return m.Of(t.Key)
	}
	slices.SortStableFunc(sorted, func(a, b Target) int { // a statement locks rows of one shard
		return cmp.Or(cmp.Compare(index(a.Algorithm), index(b.Algorithm)), cmp.Compare(shard(a), shard(b)))
	})
	in := -1
	for _, t := range sorted {
		last := len(all) - 1
		if last < 0 || all[last].algorithm != t.Algorithm.Table() || all[last].policy != t.Policy || in != shard(t) || len(all[last].keys) >= batch {
			all = append(all, bundle{algorithm: t.Algorithm.Table(), policy: t.Policy})
			last++
		}
		all[last].keys = append(all[last].keys, t.Key)
		in = shard(t)
	}
	return all
}

// act changes a bundle's rows in a transaction.
type act func(ctx context.Context, tx pgx.Tx, g bundle) (Count, error)

// work is one change.
type work struct {
	i           *Inspector
	o           Options
	act         act
	lockTimeout string // in milliseconds
	shards      *shards.Map
	done, all   int
	counts      []Count
}

// lockWait is the default of LockWait on a server with the usual deadlock_timeout.
const lockWait = 100 * time.Millisecond

// change acts on all targets, in bounded transactions. It returns what was done, on an
// error too.
//
// A transaction that waits for a lock gives up well before deadlock_timeout, so that no
// transaction fails with a deadlock, whatever order the others lock in. Then its keys are
// tried one by one. Those that stay locked are tried again when all others are done.
func (i *Inspector) change(ctx context.Context, targets []Target, o Options, f act) ([]Count, error) {
	if o.Batch <= 0 {
		o.Batch = 100
	}
	if o.Wait <= 0 {
		o.Wait = 10 * time.Second
	}
	for _, t := range targets {
		if err := (Filter{Algorithm: t.Algorithm}).check(); err != nil {
			return nil, err
		}
	}
	if len(targets) == 0 {
		return nil, nil
	}
	w := work{i: i, o: o, act: f, lockTimeout: fmt.Sprint(max(1, o.LockWait.Milliseconds()))}
	if o.LockWait <= 0 {
		if err := w.chooseLockWait(ctx); err != nil {
			return nil, err
		}
	}
	var err error
	if w.shards, err = shards.Read(ctx, i.pool); err != nil {
		return nil, exec.Translate(err, false)
	}
	all := bundles(targets, o.Batch, w.shards)
	for _, g := range all {
		w.all += len(g.keys)
	}
	held, err := w.first(ctx, all)
	if err == nil {
		err = w.again(ctx, held)
	}
	return w.counts, err
}

// chooseLockWait sets the default of LockWait.
func (w *work) chooseLockWait(ctx context.Context) error {
	err := w.i.pool.QueryRow(ctx, `SELECT LEAST($1::bigint, GREATEST(1, (SELECT s.setting::bigint FROM pg_catalog.pg_settings AS s WHERE s.name = 'deadlock_timeout') / 2))::text`,
		lockWait.Milliseconds()).Scan(&w.lockTimeout)
	return exec.Translate(err, false)
}

// first tries each bundle, and the keys of a locked one singly. It returns what is locked.
func (w *work) first(ctx context.Context, all []bundle) (held []bundle, err error) {
	for _, g := range all {
		locked, err := w.try(ctx, g)
		if err != nil {
			return nil, err
		}
		if !locked {
			continue
		}
		if len(g.keys) == 1 {
			held = append(held, g)
			continue
		}
		for _, key := range g.keys {
			one := bundle{g.algorithm, g.policy, []string{key}}
			locked, err := w.try(ctx, one)
			if err != nil {
				return nil, err
			}
			if locked {
				held = append(held, one)
			}
		}
	}
	return held, nil
}

// again tries the held ones until they are done or Wait is over.
func (w *work) again(ctx context.Context, held []bundle) error {
	ends := time.Now().Add(w.o.Wait)
	for pause := 20 * time.Millisecond; len(held) > 0; pause = min(2*pause, 500*time.Millisecond) {
		if time.Now().After(ends) {
			e := &LockedError{}
			for _, g := range held {
				e.Targets = append(e.Targets, Target{g.algorithm, g.policy, g.keys[0]})
			}
			return e
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
		var still []bundle
		for _, g := range held {
			locked, err := w.try(ctx, g)
			if err != nil {
				return err
			}
			if locked {
				still = append(still, g)
			}
		}
		held = still
	}
	return nil
}

// try acts on one bundle in one transaction. locked reports that another transaction has
// locked a row, or changed it in the meantime: nothing was done.
func (w *work) try(ctx context.Context, g bundle) (locked bool, err error) {
	var count Count
	err = pgx.BeginTxFunc(ctx, w.i.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) (err error) {
		_, err = tx.Exec(ctx, `SELECT set_config('lock_timeout'::text, $1::text, true),
			CASE WHEN current_setting('synchronous_commit'::text) = 'off' THEN set_config('synchronous_commit'::text, 'on'::text, true) END`, w.lockTimeout)
		if err == nil && w.shards != nil { // the nodes that have the rows wait for the locks
			_, err = tx.Exec(ctx, "SET LOCAL citus.propagate_set_commands = 'local'")
			if err == nil {
				_, err = tx.Exec(ctx, "SET LOCAL lock_timeout = "+w.lockTimeout)
			}
		}
		if err == nil {
			count, err = w.act(ctx, tx, g)
		}
		return err
	})
	var answer *pgconn.PgError
	if errors.As(err, &answer) && slices.Contains([]string{"40P01", "40001"}, answer.Code) || exec.IsLockTimeout(ctx, err) {
		return true, nil
	}
	if err != nil {
		return false, exec.Translate(err, false)
	}
	w.count(g, count)
	w.done += len(g.keys)
	if w.o.Progress != nil {
		w.o.Progress(w.done, w.all)
	}
	return false, nil
}

// count adds the counts of a bundle to those of its policy and algorithm.
func (w *work) count(g bundle, c Count) {
	if !c.any() {
		return
	}
	c.Policy, c.Algorithm = g.policy, g.algorithm
	n := slices.IndexFunc(w.counts, func(o Count) bool { return o.Policy == c.Policy && o.Algorithm == c.Algorithm })
	if n < 0 {
		w.counts = append(w.counts, c)
		return
	}
	o := &w.counts[n]
	o.Rows += c.Rows
	o.Reservations += c.Reservations
	o.Denials += c.Denials
	o.Events += c.Events
	o.Sums += c.Sums
	o.Entries += c.Entries
	o.Overrides += c.Overrides
	o.History += c.History
}
