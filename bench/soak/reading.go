package soak

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/proc"
	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/bench/servers"
	"github.com/pglimit/pglimit/janitor"
)

// The figures of a reading, besides a load's.
const (
	heap       report.Figure = "heap MB"            // of this process, live
	resident   report.Figure = "resident MB"        // of this process
	ofServer   report.Figure = "server MB"          // its processes' share of the machine's memory
	serverOwn  report.Figure = "server's own MB"    // of that, neither file-backed nor shared
	goroutines report.Figure = "goroutines"         // between two loads
	rows       report.Figure = "rows"               // of all tables, as the next two
	dead       report.Figure = "dead"               // by the server's estimate
	size       report.Figure = "tables, indexes MB" //
	hot        report.Figure = "HOT %"              // of decisions' updates, since the warm-up's end
	deleted    report.Figure = "deleted"            // by the janitor, since the start
	arrived    report.Figure = "keys"               // since the start
)

// columns are the figures in the report's order.
var columns = []report.Figure{
	report.PerSecond, report.P50, report.P99, heap, resident, ofServer, serverOwn, goroutines, rows, dead, size, hot, deleted, arrived,
}

// reading is the figures between two loads, those of the load before it included.
type reading struct {
	at time.Duration // since the warm-up's end
	report.Figures
	tables []table
	// Two kinds of updates are left out here, which change an index by design: the janitor's,
	// one an hour for a row in use, which the fast clock makes as many times as frequent as it
	// is fast; and those that end a reservation.
	updates, hot int64
}

type table struct {
	servers.Table
	rows int64 // counted
}

const mb = 1 << 20

// prefix begins the name of each table. reservations is the name of one, without it.
const prefix, reservations = "pglimit_", "reservation"

// tables are those whose rows come and go, without the prefix; all but the last have one row
// per key.
var tables = []string{"leaky_bucket", "leaky_bucket_queue", "token_bucket", "fixed_window", "sliding_window_counter", "sliding_window_log", reservations}

// reader takes readings.
type reader struct {
	pool       *pgxpool.Pool
	traffic    *traffic
	janitor    *janitor.Janitor
	postmaster int
	first      *reading
	fewest     int // goroutines of a reading
}

// read takes a reading after a load.
func (r *reader) read(ctx context.Context, at time.Duration, s measure.Sample) (*reading, error) {
	removed := r.janitor.Removed()
	g := &reading{at: at, updates: -removed.Kept, Figures: report.Figures{
		report.PerSecond: s.PerSecond(), report.P50: float64(s.P50), report.P99: float64(s.P99),
		deleted: float64(removed.Total()), arrived: float64(r.traffic.keys.arrived.Load()),
	}}
	if r.first == nil {
		r.first, r.fewest = g, runtime.NumGoroutine()
	}
	n := settled(ctx, r.fewest)
	r.fewest, g.Figures[goroutines] = min(r.fewest, n), float64(n)
	g.readMemory(r.postmaster)
	for _, name := range tables {
		t := table{}
		var err error
		if t.Table, err = servers.ReadTable(ctx, r.pool, prefix+name); err == nil {
			err = r.pool.QueryRow(ctx, "SELECT count(*) FROM "+prefix+name).Scan(&t.rows)
		}
		if err != nil {
			return nil, err
		}
		g.add(t)
	}
	if n := g.updates - r.first.updates; n > 0 {
		g.Figures[hot] = 100 * float64(g.hot-r.first.hot) / float64(n)
	}
	return g, nil
}

// add adds a table's figures.
func (g *reading) add(t table) {
	g.tables = append(g.tables, t)
	g.Figures[rows] += float64(t.rows)
	g.Figures[dead] += float64(t.Dead)
	g.Figures[size] += float64(t.Bytes+t.Indexes) / mb
	if t.Name != prefix+reservations {
		g.updates, g.hot = g.updates+t.Updates, g.hot+t.HOT
	}
}

// readMemory adds what the system reports.
func (g *reading) readMemory(postmaster int) {
	// Twice, so that the heap has only objects in use: pools of spare objects are freed by the
	// second collection.
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	g.Figures[heap] = float64(s.HeapInuse) / mb
	if own, err := proc.ReadMemory(os.Getpid()); err == nil {
		g.Figures[resident] = float64(own.Resident) / mb
	}
	if m, err := proc.ReadMemory(postmaster); err == nil {
		g.Figures[ofServer], g.Figures[serverOwn] = float64(m.Share)/mb, float64(m.Own)/mb
	}
}

// overdue is rows that the janitor should have deleted.
type overdue struct {
	rows int // that were compared
	late int // that the rule says must be gone
	odd  int // whose key was never in use
	// oldest is the longest time for which a row that is still there has been empty, and
	// allowed the longest that the rule allows, by the clock.
	oldest, allowed time.Duration
	example         string
}

// checkRows compares each row's key with the time at which the answers said that it would
// be empty. By the janitor's rule it is gone an hour and a sweep later. A sweep is here
// three times the longest time from the end of one to the end of the next: a reservation
// that expires, and a row that becomes due, may each just miss one.
func checkRows(ctx context.Context, pool *pgxpool.Pool, keys *population, w *sweeps) (o overdue, err error) {
	for _, name := range tables {
		if name == reservations {
			continue
		}
		now := w.clock.Now()
		rows, err := pool.Query(ctx, "SELECT key FROM "+prefix+name)
		if err != nil {
			return o, err
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return o, err
		}
		o.allowed = time.Hour + 3*w.longest()
		for _, key := range all {
			o.add(name+" "+key, now, keys.emptyBy[keyNumber(key)].Load())
		}
	}
	return o, nil
}

// add compares one row.
func (o *overdue) add(row string, now time.Time, emptyBy int64) {
	o.rows++
	if emptyBy == 0 {
		o.odd++
		o.example = row
		return
	}
	empty := now.Sub(time.UnixMicro(emptyBy))
	o.oldest = max(o.oldest, empty)
	if empty > o.allowed {
		o.late++
		o.example = fmt.Sprintf("%s has been empty for %v", row, empty.Round(time.Second))
	}
}
