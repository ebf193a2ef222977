package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/bench/servers"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// The figures of a table.
const (
	rowBytes   report.Figure = "bytes/row"
	walBytes   report.Figure = "WAL bytes"
	indexBytes report.Figure = "index bytes/row"
	tableMB    report.Figure = "table MB"
	indexMB    report.Figure = "indexes MB"
	hot        report.Figure = "HOT %"
	deleted    report.Figure = "deleted/s"
	drained    report.Figure = "seconds to empty"
)

// rowsPolicy allows everything, and its rows outlast the measurement.
var rowsPolicy = limiter.Policy{Name: "growth", Algorithm: limiter.TokenBucket, Limit: 1_000_000, Period: time.Hour, Durability: limiter.Relaxed}

// growth measures decisions on few and on many rows, each number in a database.
func (b *bench) growth() part {
	p := part{sections: []report.Section{{
		Name: "growth-rows", Title: "large tables", By: "callers", Figure: report.P50,
		More: []report.Figure{report.P99, report.PerSecond, rowBytes, indexBytes, hot},
		Note: "Keys drawn evenly from all rows, after a checkpoint. The indexes are packed.",
	}}}
	sizes := []int{10_000, 1_000_000, 10_000_000}
	if b.quick {
		sizes = []int{10_000, 100_000}
	}
	pools := make([]*pgxpool.Pool, len(sizes))
	p.prepare = func(ctx context.Context) (err error) {
		for i, n := range sizes {
			if pools[i], err = b.env.Postgres.NewDatabase(ctx, b.name(), servers.PoolSize); err != nil {
				return err
			}
			progress("filling %d rows", n)
			if err := fill(ctx, pools[i], n); err != nil {
				return err
			}
		}
		return nil
	}
	for _, n := range []int{1, 16} {
		for i, rows := range sizes {
			p.add("growth-rows", report.Count(float64(rows))+" rows", strconv.Itoa(n), func(ctx context.Context, round int) (report.Figures, error) {
				l, err := contender.NewLimiter(pools[i], true, rowsPolicy)
				if err != nil {
					return nil, err
				}
				// Earlier changes are not written out meanwhile, and the first change of each
				// page logs the whole page.
				if _, err := pools[i].Exec(ctx, "CHECKPOINT"); err != nil {
					return nil, err
				}
				sequence := measure.Evenly(rows, uint64(round))
				keys := make([]string, len(sequence))
				for j, row := range sequence {
					keys[j], sequence[j] = rowKey(int(row)), uint32(j)
				}
				s, err := measure.Run(ctx, measure.Load{
					Callers: n, Warmup: b.long().warmup, Duration: b.long().duration, Keys: keys, Sequence: sequence, Decide: l.Decide,
				})
				if err != nil {
					return nil, err
				}
				f := figures(s)
				err = tableFigures(ctx, pools[i], f)
				f[rowBytes], f[indexBytes] = f[tableMB]*(1<<20)/float64(rows), f[indexMB]*(1<<20)/float64(rows)
				return f, err
			})
		}
	}
	return p
}

// rowKey is the key of the row with number i, from 0 on.
func rowKey(i int) string { return fmt.Sprintf("user-%010d", i) }

// fill fills the table with rows as the limiter writes them: the limiter writes one, and
// fill copies all its columns except the key and the times. Of n rows the first was used one
// period ago and the last right now, and the janitor looks at them within the next hour. A
// table in which each key is used repeatedly looks like that.
func fill(ctx context.Context, pool *pgxpool.Pool, n int) error {
	const sample = "sample"
	l, err := contender.NewLimiter(pool, true, rowsPolicy)
	if err != nil {
		return err
	}
	if _, err := l.Decide(ctx, sample); err != nil {
		return err
	}
	tag, err := pool.Exec(ctx, `
		INSERT INTO pglimit_token_bucket
			(level, capacity, leak, updated_at_us, blocked_until_us, expires_at_us, cost, granted, policy, key)
		SELECT level, capacity, leak, updated_at_us - ($2::bigint * (1 - i::float8 / $1))::bigint, blocked_until_us,
			updated_at_us + (3600000000 * (i::float8 / $1))::bigint, cost, granted, policy, 'user-' || lpad(i::text, 10, '0')
		FROM pglimit_token_bucket, generate_series(0, $1::bigint - 1) AS i WHERE key = $3`,
		n, rowsPolicy.Period.Microseconds(), sample)
	if err == nil && tag.RowsAffected() != int64(n) {
		err = fmt.Errorf("%d rows were filled, not %d", tag.RowsAffected(), n)
	}
	if err != nil {
		return err
	}
	if err := l.Reset(ctx, rowsPolicy, sample); err != nil {
		return err
	}
	_, err = pool.Exec(ctx, "VACUUM (ANALYZE) pglimit_token_bucket")
	return err
}

// tableFigures adds the server's statistics of the table. That sessions report their updates
// late changes the share of HOT updates little.
func tableFigures(ctx context.Context, pool *pgxpool.Pool, f report.Figures) error {
	t, err := servers.ReadTable(ctx, pool, "pglimit_token_bucket")
	f[tableMB], f[indexMB] = float64(t.Bytes)/(1<<20), float64(t.Indexes)/(1<<20)
	if t.Updates > 0 {
		f[hot] = 100 * float64(t.HOT) / float64(t.Updates)
	}
	return err
}

// attack measures an attacker who sends a new key on every call, while the janitor runs: ten
// parts, and then until the janitor has deleted a row for each request.
func (b *bench) attack() part {
	const callers = 16
	length := 15 * time.Second // of a part
	if b.quick {
		length = b.short().duration
	}
	p := part{sections: []report.Section{{
		Name: "growth-attack", Title: fmt.Sprintf("an attacker, %d callers", callers), By: "part", Figure: report.P50,
		More: []report.Figure{report.P99, report.PerSecond, deleted, tableMB, indexMB, drained},
		Note: fmt.Sprintf("A new key on every call. The janitor deletes rows a minute after they are empty. Ten parts of %v.", length),
	}}}
	var cells []*report.Cell
	for _, s := range []string{"first", "median", "last"} {
		cells = append(cells, &report.Cell{Section: "growth-attack", Contender: "attacker", Setting: s})
	}
	p.turns = []turn{{cells, func(ctx context.Context, round int) ([]report.Figures, error) {
		if round > 0 {
			return nil, nil // once, as it takes long
		}
		moments, err := b.attacked(ctx, callers, length)
		if err == nil {
			cells[0].Rounds, cells[1].Rounds, cells[2].Rounds = moments[:1], moments, moments[len(moments)-1:]
		}
		return nil, err
	}}}
	return p
}

// attacked measures the attack in a database and returns the figures of its parts. Those of
// the table are in the last one.
func (b *bench) attacked(ctx context.Context, callers int, length time.Duration) (moments []report.Figures, err error) {
	pool, err := b.env.Postgres.NewDatabase(ctx, b.name(), servers.PoolSize+1) // one is the janitor's
	if err != nil {
		return nil, err
	}
	policy := limiter.Policy{Name: "attacker", Algorithm: limiter.TokenBucket, Limit: 10, Period: 5 * time.Second, Durability: limiter.Relaxed}
	l, err := contender.NewLimiter(pool, true, policy)
	if err != nil {
		return nil, err
	}
	const interval = time.Second
	j, err := janitor.New(pool, &janitor.Config{Interval: interval})
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	sweeping, stop := context.WithCancel(ctx)
	swept := make(chan error, 1)
	go func() {
		var err error
		for err == nil && sweeping.Err() == nil {
			_, err = j.Sweep(ctx)
			measure.Pause(sweeping, interval)
		}
		swept <- err
	}()
	defer func() {
		stop()
		err = errors.Join(err, <-swept)
	}()
	var asked atomic.Uint64
	for range 10 {
		before := j.Removed().Total()
		s, err := measure.Run(ctx, measure.Load{
			Callers: callers, Duration: length, Keys: []string{""}, Sequence: []uint32{0},
			Decide: func(ctx context.Context, _ string) (float64, error) { return l.Decide(ctx, scattered(asked.Add(1))) },
		})
		if err != nil {
			return nil, err
		}
		m := figures(s)
		m[deleted] = float64(j.Removed().Total()-before) / s.Elapsed.Seconds()
		progress("attacker: %v", m)
		moments = append(moments, m)
	}
	last := moments[len(moments)-1]
	if err := tableFigures(ctx, pool, last); err != nil || b.quick {
		return moments, err
	}
	progress("waiting until the janitor has deleted every row")
	ended := time.Now()
	for rows := int64(asked.Load()); j.Removed().Total() < rows; {
		if time.Since(ended) > 10*time.Minute || len(swept) > 0 || ctx.Err() != nil {
			return nil, fmt.Errorf("the janitor has deleted %d of %d rows", j.Removed().Total(), rows)
		}
		measure.Pause(ctx, 100*time.Millisecond)
	}
	last[drained] = time.Since(ended).Seconds()
	return moments, nil
}

// scattered returns a distinct key for each number. Adjacent numbers get keys far apart in
// an index, as names and addresses are. (It is the finalizer of splitmix64, a bijection.)
func scattered(n uint64) string {
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return "user-" + strconv.FormatUint(n^n>>31, 16)
}
