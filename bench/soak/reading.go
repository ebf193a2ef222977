package main

import (
	"context"
	"runtime"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/bench/memory"
)

// reading is the figures at one moment, and of the requests since the reading before it.
type reading struct {
	At         time.Duration // since the warm-up's end
	PerSecond  float64
	P50        time.Duration
	P99        time.Duration
	Memory     memory.Use
	Goroutines int // the least since the reading before it: some come and go with each request
	Tables     []table
	Keys       int64 // that have arrived since the start
	Sweeps     int64 // since the start
	Removed    int64 // rows, since the start
	Kept       int64 // rows that the janitor found in use, since the start
}

// table is the server's figures of a table.
type table struct {
	Name    string // without its prefix
	Rows    int64  // counted
	Dead    int64  // the server's estimate
	Bytes   int64
	Indexes int64
	// Counted by the server since the table was created.
	Updates int64
	HOT     int64
	Vacuums int64
}

// sum adds up a figure of all tables.
func (r reading) sum(figure func(table) int64) (sum int64) {
	for _, t := range r.Tables {
		sum += figure(t)
	}
	return sum
}

func (r reading) rows() int64 { return r.sum(func(t table) int64 { return t.Rows }) }
func (r reading) dead() int64 { return r.sum(func(t table) int64 { return t.Dead }) }
func (r reading) bytes() int64 {
	return r.sum(func(t table) int64 { return t.Bytes + t.Indexes })
}

// hotSince returns the share of HOT updates among those of the limits' rows since an
// earlier reading; -1 if there were none. Two kinds of updates are left out, which change an
// index by design: the janitor's, one an hour for a row in use, which the fast clock makes
// as many times as frequent as it is fast; and those that end a reservation.
func (r reading) hotSince(earlier reading) float64 {
	limits := func(figure func(table) int64) func(table) int64 {
		return func(t table) int64 {
			if t.Name == reservations {
				return 0
			}
			return figure(t)
		}
	}
	updates := limits(func(t table) int64 { return t.Updates })
	hot := limits(func(t table) int64 { return t.HOT })
	n := r.sum(updates) - earlier.sum(updates) - (r.Kept - earlier.Kept)
	if n <= 0 {
		return -1
	}
	return float64(r.sum(hot)-earlier.sum(hot)) / float64(n)
}

// prefix of the tables' names.
const prefix = "pglimit_"

// reservations is the table of the reservations, without the prefix.
const reservations = "reservation"

// limitTables are the tables with one row per key, without the prefix.
var limitTables = []string{"leaky_bucket", "leaky_bucket_queue", "token_bucket", "gcra", "fixed_window", "sliding_window_counter", "sliding_window_log"}

// readTables reads the figures of the limits' tables and of the reservations'.
func readTables(ctx context.Context, conn *pgx.Conn) (all []table, err error) {
	for _, name := range append(limitTables[:len(limitTables):len(limitTables)], reservations) {
		t := table{Name: name}
		if err := conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM `+prefix+name+`), n_dead_tup, pg_table_size(relid), pg_indexes_size(relid),
			n_tup_upd, n_tup_hot_upd, autovacuum_count FROM pg_stat_user_tables WHERE relid = $1::regclass`, prefix+name).
			Scan(&t.Rows, &t.Dead, &t.Bytes, &t.Indexes, &t.Updates, &t.HOT, &t.Vacuums); err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// reader takes readings.
type reader struct {
	traffic *traffic
	sweeper *sweeper
	server  *server
	conn    *pgx.Conn // its connection
	calls   *hdrhistogram.Histogram
	last    time.Time
	least   int // the least number of goroutines since last; 0 before the first look
}

// wait waits until a moment, and looks at the number of goroutines meanwhile.
func (r *reader) wait(ctx context.Context, until time.Time) error {
	const every = 50 * time.Millisecond
	for time.Until(until) > every {
		if err := r.traffic.until(ctx, time.Now().Add(every)); err != nil {
			return err
		}
		r.look()
	}
	return r.traffic.until(ctx, until)
}

func (r *reader) look() {
	if n := runtime.NumGoroutine(); r.least == 0 || n < r.least {
		r.least = n
	}
}

// read takes a reading. It adds the requests' durations to part too, unless that is nil.
func (r *reader) read(ctx context.Context, at time.Duration, part *hdrhistogram.Histogram) (g reading, err error) {
	r.look()
	r.calls.Reset()
	r.traffic.collect(r.calls)
	now := time.Now()
	g = reading{
		At: at, PerSecond: float64(r.calls.TotalCount()) / now.Sub(r.last).Seconds(),
		P50: time.Duration(r.calls.ValueAtQuantile(50)), P99: time.Duration(r.calls.ValueAtQuantile(99)),
		Goroutines: r.least, Memory: memory.Read(r.server.Postmaster),
		Keys: r.traffic.keys.arrived.Load(),
	}
	removed := r.sweeper.janitor.Removed()
	g.Removed, g.Kept = removed.Total(), removed.Kept
	r.last, r.least = now, 0
	if part != nil {
		part.Merge(r.calls)
	}
	g.Sweeps, _ = r.sweeper.state()
	g.Tables, err = readTables(ctx, r.conn)
	return g, err
}

// line is a reading in one line, with what happened since the one before it. The HOT share
// is since start.
func (r reading) line(before, start reading) string {
	var tables []string
	for _, t := range r.Tables {
		tables = append(tables, t.Name+" "+grouped(t.Rows)+"/"+megabytes(t.Bytes+t.Indexes))
	}
	return strings.Join([]string{
		r.At.Round(time.Second).String() + ":", grouped(int64(r.PerSecond)) + "/s,",
		"p50 " + r.P50.Round(time.Microsecond).String() + ", p99 " + r.P99.Round(time.Microsecond).String() + ",",
		"heap " + megabytes(r.Memory.Heap) + ", resident " + megabytes(r.Memory.Resident) + ", server " + megabytes(r.Memory.Server) + " (its own " + megabytes(r.Memory.ServerOwn) + ") MB,",
		grouped(int64(r.Goroutines)) + " goroutines,", grouped(r.rows()) + " rows,", grouped(r.dead()) + " dead,", megabytes(r.bytes()) + " MB,",
		"HOT " + percent(r.hotSince(start)) + " %,", grouped(r.Sweeps-before.Sweeps) + " sweeps,", grouped(r.Removed-before.Removed) + " deleted;",
		"rows/MB: " + strings.Join(tables, ", "),
	}, " ")
}
