// Package prompglimit measures limiters for Prometheus.
//
//	metrics := prompglimit.New(&prompglimit.Config{Pool: pool})
//	prometheus.MustRegister(metrics)
//	l, err := limiter.New(pool, &limiter.Config{Observe: metrics.Observe})
//	metrics.Watch(l)
//
// The metrics, with the labels policy, verb, outcome (allowed, denied, shadowed or error)
// and source (limiter.Source; empty after an error):
//
//	pglimit_decisions_total            calls of the limiter's methods
//	pglimit_units_total                units granted; of other outcomes, those requested
//	pglimit_decision_duration_seconds  histogram, time from a call to its answer
//	pglimit_batch_rows                 histogram, requests that shared a statement
//
// Without labels, and summed over the limiters that are watched:
//
//	pglimit_waiting                    callers that wait for the database
//	pglimit_breaker_open               1 while a circuit breaker refuses requests
//
// With Config.Pool, read from the database:
//
//	pglimit_open_reservations          neither settled nor cancelled, up to 100,000
//	pglimit_expired_reservations       expired and waiting for the janitor, up to 100,000
//	pglimit_janitor_lag_seconds        how long the oldest row has waited for the janitor
//	pglimit_janitor_due_rows           rows that wait for the janitor, up to 100,000
//	pglimit_database_up                1 if the database answered, else 0
//
// Keys are in no metric: their number has no bound. otelpglimit has the same metrics for
// OpenTelemetry.
package prompglimit

import (
	"context"
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
	gauges           map[metrics.Instrument]*prometheus.Desc
	database         *metrics.Database // nil: none

	series sync.Map // labels to *series

	mu       sync.Mutex
	limiters []*limiter.Limiter
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
	labels := metrics.Labels[:]
	counter := func(i metrics.Instrument) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: i.Prometheus(), Help: i.Help, ConstLabels: c.ConstLabels}, labels)
	}
	histogram := func(i metrics.Instrument, bounds []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: i.Prometheus(), Help: i.Help, ConstLabels: c.ConstLabels, Buckets: bounds}, labels)
	}
	p := &Collector{
		decisions: counter(metrics.Decisions), units: counter(metrics.Units),
		duration: histogram(metrics.Duration, metrics.DurationBounds), rows: histogram(metrics.Rows, metrics.RowsBounds),
		gauges: map[metrics.Instrument]*prometheus.Desc{},
	}
	gauges := []metrics.Instrument{metrics.Waiting, metrics.BreakerOpen}
	if c.Pool != nil {
		p.database = &metrics.Database{Pool: c.Pool, Every: c.PoolEvery, Timeout: c.PoolTimeout}
		if p.database.Every <= 0 {
			p.database.Every = metrics.DefaultEvery
		}
		if p.database.Timeout <= 0 {
			p.database.Timeout = metrics.DefaultTimeout
		}
		gauges = append(gauges, metrics.OpenReservations, metrics.ExpiredReservations, metrics.JanitorLag, metrics.JanitorDueRows, metrics.DatabaseUp)
	}
	for _, i := range gauges {
		p.gauges[i] = prometheus.NewDesc(i.Prometheus(), i.Help, nil, c.ConstLabels)
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
	s, _ := p.series.LoadOrStore(v, &series{
		p.decisions.WithLabelValues(v[:]...), p.units.WithLabelValues(v[:]...),
		p.duration.WithLabelValues(v[:]...), p.rows.WithLabelValues(v[:]...),
	})
	return s.(*series)
}

// Watch adds l to pglimit_waiting and pglimit_breaker_open, until the program ends.
func (p *Collector) Watch(l *limiter.Limiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limiters = append(p.limiters, l)
}

// Describe implements prometheus.Collector.
func (p *Collector) Describe(to chan<- *prometheus.Desc) {
	p.decisions.Describe(to)
	p.units.Describe(to)
	p.duration.Describe(to)
	p.rows.Describe(to)
	for _, d := range p.gauges {
		to <- d
	}
}

// Collect implements prometheus.Collector. With Config.Pool it may ask the database.
func (p *Collector) Collect(to chan<- prometheus.Metric) {
	p.decisions.Collect(to)
	p.units.Collect(to)
	p.duration.Collect(to)
	p.rows.Collect(to)
	gauge := func(i metrics.Instrument, v float64) {
		to <- prometheus.MustNewConstMetric(p.gauges[i], prometheus.GaugeValue, v)
	}
	waiting, open := 0, 0.
	p.mu.Lock()
	for _, l := range p.limiters {
		waiting += l.Waiting()
		if l.BreakerOpen() {
			open = 1
		}
	}
	p.mu.Unlock()
	gauge(metrics.Waiting, float64(waiting))
	gauge(metrics.BreakerOpen, open)
	if p.database == nil {
		return
	}
	s, up := p.database.Status(context.Background())
	if !up {
		gauge(metrics.DatabaseUp, 0)
		return // old numbers would hide that
	}
	gauge(metrics.DatabaseUp, 1)
	gauge(metrics.OpenReservations, float64(s.OpenReservations))
	gauge(metrics.ExpiredReservations, float64(s.ExpiredReservations))
	gauge(metrics.JanitorLag, s.Lag.Seconds())
	gauge(metrics.JanitorDueRows, float64(s.DueRows))
}
