// Package prompglimit measures limiters for Prometheus.
//
//	metrics := prompglimit.New(&prompglimit.Config{Pool: pool})
//	prometheus.MustRegister(metrics)
//	l, err := limiter.New(pool, &limiter.Config{Observe: metrics.Observe})
//	metrics.Watch(l)
//
// The metrics, with the labels policy, verb, outcome (a limiter.Outcome: allowed, denied,
// skipped, shadowed or error) and source (a limiter.Source; empty after an error):
//
//	pglimit_decisions_total            calls of the limiter's methods
//	pglimit_units_total                units granted; of other outcomes, those requested
//
// Histograms of all policies together, with the labels verb and source, and verb:
//
//	pglimit_decision_duration_seconds  time from a call to its answer
//	pglimit_batch_rows                 requests that shared a statement
//
// Without labels, and summed over the limiters that are watched:
//
//	pglimit_waiting                    callers that wait for the database
//	pglimit_breaker_open               1 while a circuit breaker refuses requests
//
// With Config.Pool or Config.DB, read from the database:
//
//	pglimit_open_reservations          neither settled nor cancelled, up to 100,000
//	pglimit_expired_reservations       expired and waiting for the janitor, up to 100,000
//	pglimit_janitor_lag_seconds        how long the oldest row has waited for the janitor
//	pglimit_janitor_due_rows           rows that wait for the janitor, up to 100,000
//	pglimit_keys_share                 rows of the policy nearest to its MaxKeys, as a part of it
//	pglimit_database_up                1 if the database answered, else 0
//
// Keys are in no metric: their number has no bound. Policies beyond the first 1,000 are together
// the policy "other". otelpglimit has the same metrics for OpenTelemetry.
package prompglimit

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pglimit/pglimit/internal/metrics"
	"github.com/pglimit/pglimit/limiter"
)

// Config sets up a Collector. The zero value and nil have the defaults that each field
// names.
type Config struct {
	// Pool, if set, is asked for open reservations and the janitor's lag while metrics are
	// collected. Default: nil, those metrics are absent. Set it in one process: others would
	// report the same.
	Pool *pgxpool.Pool
	// DB is Pool for database/sql. Pool goes first. Default: nil.
	DB *sql.DB
	// PoolEvery is the least time between two such questions. Default: 10s.
	PoolEvery time.Duration
	// PoolTimeout bounds such a question. Default: 2s.
	PoolTimeout time.Duration
	// ConstLabels are added to each metric. Default: none.
	ConstLabels prometheus.Labels
}

// Collector is a prometheus.Collector. It is safe for concurrent use.
type Collector struct {
	decisions, units *prometheus.CounterVec
	duration, rows   *prometheus.HistogramVec
	gauges           *metrics.Gauges
	descs            map[metrics.Instrument]*prometheus.Desc // of the gauges

	policies metrics.Names
	series   sync.Map // labels to *series
}

// series has the metrics of one combination of labels.
type series struct {
	decisions, units prometheus.Counter
	duration, rows   prometheus.Observer
}

// New returns a Collector. Register it once for each registry.
func New(config *Config) *Collector {
	var c Config
	if config != nil {
		c = *config
	}
	counter := func(i metrics.Instrument) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: i.Prometheus(), Help: i.Help, ConstLabels: c.ConstLabels}, metrics.Labels[:])
	}
	histogram := func(i metrics.Instrument, bounds []float64, labels []int) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: i.Prometheus(), Help: i.Help, ConstLabels: c.ConstLabels, Buckets: bounds}, metrics.Pick(metrics.Labels, labels))
	}
	p := &Collector{
		decisions: counter(metrics.Decisions), units: counter(metrics.Units),
		duration: histogram(metrics.Duration, metrics.DurationBounds, metrics.OfDuration), rows: histogram(metrics.Rows, metrics.RowsBounds, metrics.OfRows),
		gauges: metrics.NewGauges(c.Pool, c.DB, c.PoolEvery, c.PoolTimeout), descs: map[metrics.Instrument]*prometheus.Desc{},
	}
	for _, i := range p.gauges.All() {
		p.descs[i] = prometheus.NewDesc(i.Prometheus(), i.Help, nil, c.ConstLabels)
	}
	return p
}

// Observe counts a call. Use it as limiter.Config.Observe, of one or of several limiters.
func (p *Collector) Observe(_ context.Context, o limiter.Observation) {
	s := p.of(o.Labels())
	s.decisions.Inc()
	s.units.Add(o.Units())
	s.duration.Observe(o.Duration.Seconds())
	if o.Rows > 0 {
		s.rows.Observe(float64(o.Rows))
	}
}

func (p *Collector) of(v [4]string) *series {
	if s, ok := p.series.Load(v); ok {
		return s.(*series)
	}
	v[0] = p.policies.Of(v[0])
	s, _ := p.series.LoadOrStore(v, &series{
		p.decisions.WithLabelValues(v[:]...), p.units.WithLabelValues(v[:]...),
		p.duration.WithLabelValues(metrics.Pick(v, metrics.OfDuration)...), p.rows.WithLabelValues(metrics.Pick(v, metrics.OfRows)...),
	})
	return s.(*series)
}

// Watch adds l to pglimit_waiting and pglimit_breaker_open, until the program ends.
func (p *Collector) Watch(l *limiter.Limiter) { p.gauges.Watch(l) }

// Describe implements prometheus.Collector.
func (p *Collector) Describe(to chan<- *prometheus.Desc) {
	p.decisions.Describe(to)
	p.units.Describe(to)
	p.duration.Describe(to)
	p.rows.Describe(to)
	for _, d := range p.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector. With Config.Pool or Config.DB it
// may ask the database.
func (p *Collector) Collect(to chan<- prometheus.Metric) {
	p.decisions.Collect(to)
	p.units.Collect(to)
	p.duration.Collect(to)
	p.rows.Collect(to)
	p.gauges.Read(context.Background(), func(i metrics.Instrument, v float64) {
		to <- prometheus.MustNewConstMetric(p.descs[i], prometheus.GaugeValue, v)
	})
}
