// Package metrics has what the modules otelpglimit and prompglimit share: the names of the
// instruments, and how gauges are read.
package metrics

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/janitor"
)

// Instrument is one metric.
type Instrument struct {
	Name string // as in OpenTelemetry
	Unit string // in UCUM; s for seconds
	Help string

	total bool // a counter
}

// Prometheus returns the instrument's name in Prometheus, as OpenTelemetry's exporter
// writes it.
func (i Instrument) Prometheus() string {
	name := strings.ReplaceAll(i.Name, ".", "_")
	if i.Unit == "s" {
		name += "_seconds"
	}
	if i.total {
		name += "_total"
	}
	return name
}

// The instruments. Decisions and Units have the attributes of Labels. A histogram has 12 or
// 17 series for each combination, so Duration has only the verb and source, and Rows the verb.
var (
	Decisions = Instrument{"pglimit.decisions", "{decision}", "Calls of the limiter's methods, by what came of them.", true}
	Units     = Instrument{"pglimit.units", "{unit}", "Units granted; of other outcomes than allowed, those requested.", true}
	Duration  = Instrument{"pglimit.decision.duration", "s", "Time from a call to its answer, without the sleep of a Wait.", false}
	Rows      = Instrument{"pglimit.batch.rows", "{request}", "Requests that shared the statement or transaction of a request.", false}

	Waiting     = Instrument{"pglimit.waiting", "{caller}", "Callers that wait for the database.", false}
	BreakerOpen = Instrument{"pglimit.breaker.open", "1", "1 while the circuit breaker refuses requests, else 0.", false}

	OpenReservations    = Instrument{"pglimit.open_reservations", "{reservation}", "Reservations that are neither settled nor cancelled, up to 100,000.", false}
	ExpiredReservations = Instrument{"pglimit.expired_reservations", "{reservation}", "Reservations that have expired and wait for the janitor, up to 100,000.", false}
	JanitorLag          = Instrument{"pglimit.janitor.lag", "s", "For how long the oldest row or reservation has waited for the janitor.", false}
	JanitorDueRows      = Instrument{"pglimit.janitor.due_rows", "{row}", "Rows that wait for the janitor, up to 100,000.", false}
	KeysShare           = Instrument{"pglimit.keys.share", "1", "Rows of the policy that is nearest to its MaxKeys, as a part of it.", false}
	DatabaseUp          = Instrument{"pglimit.database.up", "1", "1 if the database answered the questions for these metrics, else 0.", false}
)

// Labels are the names of the attributes, in the order of limiter.Observation.Labels.
var Labels = [...]string{"policy", "verb", "outcome", "source"}

// OfDuration and OfRows are the indexes in Labels of the attributes of Duration and Rows.
var (
	OfDuration = []int{1, 3}
	OfRows     = []int{1}
)

// Pick returns the elements of all at the indexes.
func Pick(all [4]string, indexes []int) (some []string) {
	for _, i := range indexes {
		some = append(some, all[i])
	}
	return some
}

// DurationBounds are the buckets of Duration in seconds, RowsBounds those of Rows.
var (
	DurationBounds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}
	RowsBounds     = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256}
)

// MaxNames and MaxName, in bytes, bound the policies that metrics have apart, since clients of
// servers can make up names. All others are Other.
const (
	MaxNames, MaxName = 1000, 256
	Other             = "other"
)

// Names are the names that metrics have. The zero value has none.
type Names struct {
	mu    sync.Mutex
	known map[string]struct{}
}

// Of returns name, or Other if it is too long or there are MaxNames already.
func (n *Names) Of(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil {
		n.known = map[string]struct{}{}
	}
	if _, known := n.known[name]; !known && (len(name) > MaxName || len(n.known) >= MaxNames) {
		return Other
	}
	n.known[name] = struct{}{}
	return name
}

// Limiter is what Gauges reads of a limiter.
type Limiter interface {
	Waiting() int
	BreakerOpen() bool
}

// Gauges reads the gauges of limiters and of a database while metrics are collected. It asks the
// database at most once in every.
type Gauges struct {
	read           func(context.Context) (janitor.State, error) // nil: no database
	every, timeout time.Duration

	mu       sync.Mutex
	limiters []Limiter
	at       time.Time // of the last question
	last     janitor.State
	up       bool
}

// NewGauges returns Gauges without limiters, of pool's database, or else of db's, or of none
// if both are nil. every is the least time between
// two questions to the database, by default 10s, and timeout bounds one, by default 2s.
func NewGauges(pool *pgxpool.Pool, db *sql.DB, every, timeout time.Duration) *Gauges {
	if every <= 0 {
		every = 10 * time.Second
	}
	if timeout <= 0 {
		timeout = 2 * time.Second
	}
	g := &Gauges{every: every, timeout: timeout}
	if pool != nil {
		g.read = func(ctx context.Context) (janitor.State, error) { return janitor.ReadState(ctx, pool) }
	} else if db != nil {
		g.read = func(ctx context.Context) (janitor.State, error) { return janitor.ReadStateSQL(ctx, db) }
	}
	return g
}

// Watch adds a limiter.
func (g *Gauges) Watch(l Limiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limiters = append(g.limiters, l)
}

// All returns the instruments that Read may set.
func (g *Gauges) All() []Instrument {
	all := []Instrument{Waiting, BreakerOpen}
	if g.read != nil {
		all = append(all, OpenReservations, ExpiredReservations, JanitorLag, JanitorDueRows, KeysShare, DatabaseUp)
	}
	return all
}

// Read sets the instruments' values.
func (g *Gauges) Read(ctx context.Context, set func(Instrument, float64)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	waiting, open := 0, 0.
	for _, l := range g.limiters {
		waiting += l.Waiting()
		if l.BreakerOpen() {
			open = 1
		}
	}
	set(Waiting, float64(waiting))
	set(BreakerOpen, open)
	if g.read == nil {
		return
	}
	g.ask(ctx)
	if !g.up {
		set(DatabaseUp, 0)
		return // old numbers would hide that
	}
	set(DatabaseUp, 1)
	set(OpenReservations, float64(g.last.OpenReservations))
	set(ExpiredReservations, float64(g.last.ExpiredReservations))
	set(JanitorLag, g.last.Lag.Seconds())
	set(JanitorDueRows, float64(g.last.DueRows))
	fullest := 0.
	for _, b := range g.last.Bounded {
		fullest = max(fullest, b.Share())
	}
	set(KeysShare, fullest)
}

// ask asks the database, unless it was asked recently.
func (g *Gauges) ask(ctx context.Context) {
	if !g.at.IsZero() && time.Since(g.at) < g.every {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	status, err := g.read(ctx)
	if g.up = err == nil; g.up {
		g.last = status
	}
	g.at = time.Now()
}
