// Package otelpglimit measures and traces limiters with OpenTelemetry.
//
//	telemetry, err := otelpglimit.New(&otelpglimit.Config{Pool: pool})
//	...
//	l, err := limiter.New(pool, &limiter.Config{Observe: telemetry.Observe})
//	telemetry.Watch(l)
//
// The metrics, with the attributes policy, verb, outcome (a limiter.Outcome: allowed,
// denied, skipped, shadowed or error) and source (a limiter.Source; absent after an error):
//
//	pglimit.decisions          counter of calls of the limiter's methods
//	pglimit.units              counter of units granted; of other outcomes, those requested
//
// Histograms of all policies together, with the attributes verb and source, and verb:
//
//	pglimit.decision.duration  seconds from a call to its answer
//	pglimit.batch.rows         requests that shared a statement
//
// Without attributes, and summed over the limiters that are watched:
//
//	pglimit.waiting            callers that wait for the database
//	pglimit.breaker.open       1 while a circuit breaker refuses requests
//
// With Config.Pool or Config.DB, read from the database:
//
//	pglimit.open_reservations     neither settled nor cancelled, up to 100,000
//	pglimit.expired_reservations  expired and waiting for the janitor, up to 100,000
//	pglimit.janitor.lag           seconds that the oldest row has waited for the janitor
//	pglimit.janitor.due_rows      rows that wait for the janitor, up to 100,000
//	pglimit.keys.share            rows of the policy nearest to its MaxKeys, as a part of it
//	pglimit.database.up           1 if the database answered, else 0
//
// Keys are in no metric: their number has no bound. Policies beyond the first 1,000 are together
// the policy "other". prompglimit has the same metrics for Prometheus without OpenTelemetry.
package otelpglimit

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/pglimit/pglimit/internal/metrics"
	"github.com/pglimit/pglimit/limiter"
)

// scope names the instruments' and spans' library.
const scope = "github.com/pglimit/pglimit/otelpglimit"

// Config sets up Telemetry. The zero value and nil have the defaults that each field
// names.
type Config struct {
	// MeterProvider makes the instruments. Default: otel.GetMeterProvider().
	MeterProvider metric.MeterProvider
	// TracerProvider makes the spans. Default: otel.GetTracerProvider().
	TracerProvider trace.TracerProvider
	// DisableSpans makes no spans. By default each call is a span, a child of the span in
	// its context. A sampled span costs more than the call's metrics.
	DisableSpans bool
	// SpanKey puts the key into the spans as pglimit.key, and errors with their whole text,
	// which may quote it. Default: false. A key may be personal data. Metrics never have it.
	SpanKey bool
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
}

// Telemetry measures and traces limiters. It is safe for concurrent use.
type Telemetry struct {
	decisions metric.Int64Counter
	units     metric.Float64Counter
	duration  metric.Float64Histogram
	rows      metric.Int64Histogram
	tracer    trace.Tracer // nil: no spans
	spanKey   bool
	callback  metric.Registration

	gauges   *metrics.Gauges
	policies metrics.Names
	series   sync.Map // labels to *series
}

// New returns Telemetry. It returns the errors of the meter provider.
func New(config *Config) (*Telemetry, error) {
	var c Config
	if config != nil {
		c = *config
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	t := &Telemetry{spanKey: c.SpanKey, gauges: metrics.NewGauges(c.Pool, c.DB, c.PoolEvery, c.PoolTimeout)}
	if !c.DisableSpans {
		t.tracer = c.TracerProvider.Tracer(scope)
	}
	meter := c.MeterProvider.Meter(scope)
	var errs [5]error
	t.decisions, errs[0] = meter.Int64Counter(metrics.Decisions.Name,
		metric.WithUnit(metrics.Decisions.Unit), metric.WithDescription(metrics.Decisions.Help))
	t.units, errs[1] = meter.Float64Counter(metrics.Units.Name,
		metric.WithUnit(metrics.Units.Unit), metric.WithDescription(metrics.Units.Help))
	t.duration, errs[2] = meter.Float64Histogram(metrics.Duration.Name, metric.WithUnit(metrics.Duration.Unit),
		metric.WithDescription(metrics.Duration.Help), metric.WithExplicitBucketBoundaries(metrics.DurationBounds...))
	t.rows, errs[3] = meter.Int64Histogram(metrics.Rows.Name, metric.WithUnit(metrics.Rows.Unit),
		metric.WithDescription(metrics.Rows.Help), metric.WithExplicitBucketBoundaries(metrics.RowsBounds...))
	errs[4] = t.registerGauges(meter)
	return t, errors.Join(errs[:]...)
}

// registerGauges registers what is read when metrics are collected.
func (t *Telemetry) registerGauges(meter metric.Meter) error {
	var all []metric.Observable
	var errs []error
	gauges := map[metrics.Instrument]metric.Float64ObservableGauge{}
	for _, i := range t.gauges.All() {
		g, err := meter.Float64ObservableGauge(i.Name, metric.WithUnit(i.Unit), metric.WithDescription(i.Help))
		gauges[i], all, errs = g, append(all, g), append(errs, err)
	}
	var err error
	t.callback, err = meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		t.gauges.Read(ctx, func(i metrics.Instrument, v float64) { o.ObserveFloat64(gauges[i], v) })
		return nil
	}, all...)
	return errors.Join(append(errs, err)...)
}

// Close ends reading the gauges. Counters and histograms stay as they are.
func (t *Telemetry) Close() error { return t.callback.Unregister() }

// Watch adds l to pglimit.waiting and pglimit.breaker.open, until the program ends.
func (t *Telemetry) Watch(l *limiter.Limiter) { t.gauges.Watch(l) }

// Observe counts a call and makes its span. Use it as limiter.Config.Observe, of one or of
// several limiters.
func (t *Telemetry) Observe(ctx context.Context, o limiter.Observation) {
	k := o.Labels()
	s := t.of(k)
	t.decisions.Add(ctx, 1, s.add...)
	t.units.Add(ctx, o.Units(), s.add...)
	t.duration.Record(ctx, o.Duration.Seconds(), s.duration...)
	if o.Rows > 0 {
		t.rows.Record(ctx, int64(o.Rows), s.rows...)
	}
	if t.tracer != nil {
		t.span(ctx, &o, k)
	}
}

// series has the options for one combination of attributes.
type series struct {
	add            []metric.AddOption
	duration, rows []metric.RecordOption
}

func (t *Telemetry) of(k [4]string) *series {
	if known, ok := t.series.Load(k); ok {
		return known.(*series)
	}
	k[0] = t.policies.Of(k[0])
	set := func(labels ...int) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(attributesOf(k, labels...)...))
	}
	known, _ := t.series.LoadOrStore(k, &series{
		[]metric.AddOption{set(0, 1, 2, 3)},
		[]metric.RecordOption{set(metrics.OfDuration...)}, []metric.RecordOption{set(metrics.OfRows...)},
	})
	return known.(*series)
}

// attributesOf returns the attributes at those indexes of metrics.Labels that have a value.
func attributesOf(k [4]string, labels ...int) (all []attribute.KeyValue) {
	for _, i := range labels {
		if k[i] != "" {
			all = append(all, attribute.String(metrics.Labels[i], k[i]))
		}
	}
	return all
}

// span makes the span of a call that has ended. A denial is no error.
func (t *Telemetry) span(ctx context.Context, o *limiter.Observation, k [4]string) {
	end := time.Now()
	_, span := t.tracer.Start(ctx, "pglimit "+string(o.Verb), trace.WithTimestamp(end.Add(-o.Duration)), trace.WithSpanKind(trace.SpanKindClient))
	defer span.End(trace.WithTimestamp(end))
	if !span.IsRecording() {
		return
	}
	for _, a := range attributesOf(k, 0, 1, 2, 3) {
		span.SetAttributes(attribute.KeyValue{Key: "pglimit." + a.Key, Value: a.Value})
	}
	span.SetAttributes(attribute.Float64("pglimit.cost", o.Request.Cost), attribute.Int("pglimit.batch.rows", o.Rows), attribute.Int("pglimit.waiting", o.Waiting))
	if t.spanKey {
		span.SetAttributes(attribute.String("pglimit.key", o.Request.Key))
	}
	if o.Err != nil {
		text := o.Err.Error()
		if !t.spanKey { // it may quote the key
			text = kind(o.Err)
		}
		span.SetStatus(codes.Error, text)
		return
	}
	span.SetAttributes(attribute.Float64("pglimit.remaining", o.Result.Remaining))
	if o.Result.RetryAfter > 0 && o.Result.RetryAfter != limiter.Never {
		span.SetAttributes(attribute.Float64("pglimit.retry_after", o.Result.RetryAfter.Seconds()))
	}
}

// kind returns the text of the limiter's error that err is, without what is of one call.
func kind(err error) string {
	for _, known := range [...]error{
		limiter.ErrInvalid, limiter.ErrUnsupported, limiter.ErrNotMigrated, limiter.ErrMisconfigured, limiter.ErrOverloaded, limiter.ErrLocked,
		limiter.ErrUnavailable, limiter.ErrNoReservation, limiter.ErrReservationEnded, limiter.ErrNoTicket, limiter.ErrNoSlot, limiter.ErrClosed, limiter.ErrRetryTx,
		context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return "error"
}
