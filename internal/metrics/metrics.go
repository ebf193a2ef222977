// Package metrics has what the modules otelpglimit and prompglimit share: the names of the
// instruments, and how a database is measured.
package metrics

import (
	"context"
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

// The instruments. Those up to Rows have the attributes of Labels.
var (
	Decisions = Instrument{"pglimit.decisions", "{decision}", "Calls of the limiter's methods, by what came of them.", true}
	Units     = Instrument{"pglimit.units", "{unit}", "Units granted; of denied, shadowed and failed requests, those requested.", true}
	Duration  = Instrument{"pglimit.decision.duration", "s", "Time from a call to its answer, without the sleep of a Wait.", false}
	Rows      = Instrument{"pglimit.batch.rows", "{request}", "Requests that shared the statement or transaction of a request.", false}

	Waiting     = Instrument{"pglimit.waiting", "{caller}", "Callers that wait for the database.", false}
	BreakerOpen = Instrument{"pglimit.breaker.open", "1", "1 while the circuit breaker refuses requests, else 0.", false}

	OpenReservations    = Instrument{"pglimit.open_reservations", "{reservation}", "Reservations that are neither settled nor cancelled, up to 100,000.", false}
	ExpiredReservations = Instrument{"pglimit.expired_reservations", "{reservation}", "Reservations that have expired and wait for the janitor, up to 100,000.", false}
	JanitorLag          = Instrument{"pglimit.janitor.lag", "s", "For how long the oldest row or reservation has waited for the janitor.", false}
	JanitorDueRows      = Instrument{"pglimit.janitor.due_rows", "{row}", "Rows that wait for the janitor, up to 100,000.", false}
	DatabaseUp          = Instrument{"pglimit.database.up", "1", "1 if the database answered the questions for these metrics, else 0.", false}
)

// Labels are the names of the attributes, in the order of limiter.Observation.Labels.
var Labels = [...]string{"policy", "verb", "outcome", "source"}

// DurationBounds are the buckets of Duration in seconds, RowsBounds those of Rows.
var (
	DurationBounds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}
	RowsBounds     = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256}
)

// Database reads what waits in a database, at most once in a while.
type Database struct {
	Pool    *pgxpool.Pool
	Every   time.Duration // the least time between two questions
	Timeout time.Duration

	mu   sync.Mutex
	at   time.Time
	last janitor.Status
	up   bool
}

// The defaults of Database.
const (
	DefaultEvery   = 10 * time.Second
	DefaultTimeout = 2 * time.Second
)

// Status returns the last answer, and whether the database answered the last question.
func (d *Database) Status(ctx context.Context) (janitor.Status, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.at.IsZero() && time.Since(d.at) < d.Every {
		return d.last, d.up
	}
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	status, err := janitor.ReadStatus(ctx, d.Pool)
	if d.up = err == nil; d.up {
		d.last = status
	}
	d.at = time.Now()
	return d.last, d.up
}
