package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/metadata"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/otelpglimit"
	"github.com/pglimit/pglimit/prompglimit"
)

// telemetry is what the server measures: for Prometheus always, by OpenTelemetry if its
// environment variables say where to.
type telemetry struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec // by interface, route and status
	decided  *prompglimit.Collector
	otel     *otelpglimit.Telemetry // nil without OpenTelemetry
	stop     []func(context.Context) error
}

// startTelemetry returns a telemetry.
func startTelemetry(ctx context.Context, pool *pgxpool.Pool, version string, places *room) (*telemetry, error) {
	t := &telemetry{registry: prometheus.NewRegistry(), decided: prompglimit.New(&prompglimit.Config{Pool: pool})}
	t.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pglimit_requests_total", Help: "Requests by interface (http, grpc), route and status.",
	}, []string{"interface", "route", "status"})
	t.registry.MustRegister(t.decided, t.requests, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pglimit_connections_refused_total", Help: "Connections closed at once, because there were too many.",
		}, func() float64 { return float64(places.refused.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pglimit_build_info", Help: "The program's version.", ConstLabels: prometheus.Labels{"version": version, "go": runtime.Version()},
		}, func() float64 { return 1 }))
	return t, t.startOTel(ctx, version)
}

// wanted reports whether the environment has an exporter of a signal: TRACES or METRICS.
func wanted(signal string) bool {
	if off, _ := strconv.ParseBool(os.Getenv("OTEL_SDK_DISABLED")); off {
		return false
	}
	for _, name := range []string{"OTEL_" + signal + "_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_" + signal + "_ENDPOINT"} {
		if value := os.Getenv(name); value != "" {
			return !strings.EqualFold(os.Getenv("OTEL_"+signal+"_EXPORTER"), "none")
		}
	}
	return false
}

// startOTel starts what the environment wants.
func (t *telemetry) startOTel(ctx context.Context, version string) error {
	traces, metrics := wanted("TRACES"), wanted("METRICS")
	if !traces && !metrics {
		return nil
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "pglimit"), attribute.String("service.version", version)), resource.WithFromEnv())
	if err != nil {
		return err
	}
	if traces {
		exporter, err := autoexport.NewSpanExporter(ctx)
		if err != nil {
			return err
		}
		p := trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(about))
		otel.SetTracerProvider(p)
		t.stop = append(t.stop, p.Shutdown)
	}
	if metrics {
		reader, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return err
		}
		p := metric.NewMeterProvider(metric.WithReader(reader), metric.WithResource(about))
		otel.SetMeterProvider(p)
		t.stop = append(t.stop, p.Shutdown)
	}
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	t.otel, err = otelpglimit.New(&otelpglimit.Config{DisableSpans: !traces})
	return err
}

// observe is the limiter's Config.Observe.
func (t *telemetry) observe(ctx context.Context, o limiter.Observation) {
	t.decided.Observe(ctx, o)
	if t.otel != nil {
		t.otel.Observe(ctx, o)
	}
}

// watch adds a limiter to the gauges.
func (t *telemetry) watch(l *limiter.Limiter) {
	t.decided.Watch(l)
	if t.otel != nil {
		t.otel.Watch(l)
	}
}

// http returns a handler with the spans and metrics of requests.
func (t *telemetry) http(h http.Handler) http.Handler {
	if t.otel == nil {
		return h
	}
	return otelhttp.NewHandler(h, "pglimit", otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Method + " " + r.Pattern }))
}

// traced returns the context of a call over gRPC with its caller's trace. The limiter's spans
// continue it.
func traced(ctx context.Context) context.Context {
	sent, _ := metadata.FromIncomingContext(ctx)
	return otel.GetTextMapPropagator().Extract(ctx, carrier(sent))
}

// carrier reads a trace from metadata.
type carrier metadata.MD

// Get returns the first value of a key.
func (c carrier) Get(key string) string {
	if all := metadata.MD(c).Get(key); len(all) > 0 {
		return all[0]
	}
	return ""
}

// Set sets a value.
func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

// Keys returns the keys.
func (c carrier) Keys() []string { return slices.Collect(maps.Keys(c)) }

// close sends what was not sent.
func (t *telemetry) close(ctx context.Context) (err error) {
	if t.otel != nil {
		err = t.otel.Close()
	}
	for _, stop := range t.stop {
		err = errors.Join(err, stop(ctx))
	}
	return err
}

// observe counts and logs a request over HTTP. Keys are in bodies and queries, which are not
// logged.
func (s *Server) observe(r *http.Request, route, caller string, status int, took time.Duration) {
	s.telemetry.requests.WithLabelValues("http", route, statusText(status)).Inc()
	since := int64(1)
	switch s.options.AccessLog {
	case "none":
		return
	case "errors":
		if status < 400 || status == http.StatusTooManyRequests {
			return
		}
		var passes bool
		if since, passes = s.logged.Next(logEvery); !passes {
			return
		}
	}
	level := slog.LevelInfo
	if status >= 500 {
		level = slog.LevelWarn
	}
	s.options.Logger.LogAttrs(r.Context(), level, "request", slog.String("method", r.Method), slog.String("route", route), slog.Int("status", status),
		slog.Duration("took", took), slog.String("caller", caller), slog.String("remote", r.RemoteAddr), slog.Int64("since_last", since))
}

// logEvery is the least time between two errors in the access log, so that a client that makes
// many does not fill it. since_last is the number of errors since the last line.
const logEvery = 10 * time.Millisecond

// statusText returns a status as text. The usual ones allocate nothing.
func statusText(status int) string {
	switch status {
	case http.StatusOK:
		return "200"
	case http.StatusNoContent:
		return "204"
	case http.StatusTooManyRequests:
		return "429"
	}
	return fmt.Sprint(status)
}
