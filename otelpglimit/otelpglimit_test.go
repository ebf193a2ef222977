package otelpglimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pglimit/pglimit/limiter"
)

// newTelemetry returns Telemetry with what it measures and the spans that it makes.
func newTelemetry(t *testing.T, config Config) (*Telemetry, *metric.ManualReader, *tracetest.SpanRecorder) {
	t.Helper()
	reader, spans := metric.NewManualReader(), tracetest.NewSpanRecorder()
	config.MeterProvider = metric.NewMeterProvider(metric.WithReader(reader))
	config.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	telemetry, err := New(&config)
	if err != nil {
		t.Fatal(err)
	}
	return telemetry, reader, spans
}

// read returns all points as name{attributes} value, in order.
func read(t *testing.T, reader *metric.ManualReader) (lines []string) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	add := func(name string, set attribute.Set, value any) {
		lines = append(lines, fmt.Sprintf("%s{%s} %v", name, set.Encoded(attribute.DefaultEncoder()), value))
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				add(m.Name, p.Attributes, p.Value)
			}
		case metricdata.Sum[float64]:
			for _, p := range data.DataPoints {
				add(m.Name, p.Attributes, p.Value)
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				add(m.Name, p.Attributes, p.Value)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				add(m.Name, p.Attributes, p.Count)
			}
		case metricdata.Histogram[int64]:
			for _, p := range data.DataPoints {
				add(m.Name, p.Attributes, p.Sum)
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// TestObserve: metrics and spans have policies and verbs, and no keys.
func TestObserve(t *testing.T) {
	telemetry, reader, spans := newTelemetry(t, Config{})
	l := limiter.NewMemory(&limiter.Config{Observe: telemetry.Observe})
	telemetry.Watch(l)
	p := limiter.Policy{Name: "login", Algorithm: limiter.FixedWindow, Limit: 3, Period: time.Hour}
	ctx, parent := sdktrace.NewTracerProvider().Tracer("test").Start(t.Context(), "request")
	for range 2 {
		_, _ = l.AllowN(ctx, p, "a secret key", 2)
	}
	parent.End()
	telemetry.Observe(t.Context(), limiter.Observation{Verb: limiter.VerbAllow, Request: p.Request("a secret key", 3), Err: errors.New("away"), Duration: time.Second, Rows: 7})

	want := []string{
		"pglimit.batch.rows{verb=allow} 7",
		"pglimit.breaker.open{} 0",
		"pglimit.decision.duration{source=memory,verb=allow} 2",
		"pglimit.decision.duration{verb=allow} 1",
		"pglimit.decisions{outcome=allowed,policy=login,source=memory,verb=allow} 1",
		"pglimit.decisions{outcome=denied,policy=login,source=memory,verb=allow} 1",
		"pglimit.decisions{outcome=error,policy=login,verb=allow} 1",
		"pglimit.units{outcome=allowed,policy=login,source=memory,verb=allow} 2",
		"pglimit.units{outcome=denied,policy=login,source=memory,verb=allow} 2",
		"pglimit.units{outcome=error,policy=login,verb=allow} 3",
		"pglimit.waiting{} 0",
	}
	if got := read(t, reader); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	ended := spans.Ended()
	if len(ended) != 3 {
		t.Fatalf("%d spans", len(ended))
	}
	for i, s := range ended {
		text := fmt.Sprint(s.Attributes())
		if s.Name() != "pglimit allow" || strings.Contains(text, "secret") || !strings.Contains(text, "pglimit.policy") {
			t.Errorf("%s: %s", s.Name(), text)
		}
		if i < 2 && (s.Parent().SpanID() != parent.SpanContext().SpanID() || s.Status().Code != codes.Unset) {
			t.Errorf("a decision's span has parent %v and status %v", s.Parent(), s.Status())
		}
	}
	failed := ended[2]
	if failed.Status().Code != codes.Error || failed.Status().Description != "error" || failed.EndTime().Sub(failed.StartTime()) != time.Second {
		t.Errorf("status %v, from %v to %v", failed.Status(), failed.StartTime(), failed.EndTime())
	}

	if err := telemetry.Close(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, reader); slices.Contains(got, "pglimit.waiting{} 0") {
		t.Error("gauges after Close")
	}
}

func TestSpanOptions(t *testing.T) {
	telemetry, _, spans := newTelemetry(t, Config{SpanKey: true})
	o := limiter.Observation{Verb: limiter.VerbBlock, Request: limiter.Policy{Name: "login"}.Request("alice", 0)}
	telemetry.Observe(t.Context(), o)
	if s := spans.Ended(); len(s) != 1 || !strings.Contains(fmt.Sprint(s[0].Attributes()), "alice") {
		t.Errorf("SpanKey: %v", s)
	}
	// An error's text may quote the key.
	o.Err = fmt.Errorf("%w: key \"alice\" is too long", limiter.ErrInvalid)
	for _, showKey := range []bool{false, true} {
		telemetry, _, spans := newTelemetry(t, Config{SpanKey: showKey})
		telemetry.Observe(t.Context(), o)
		text := spans.Ended()[0].Status().Description
		if strings.Contains(text, "alice") != showKey || !strings.Contains(text, limiter.ErrInvalid.Error()) {
			t.Errorf("SpanKey %v: %s", showKey, text)
		}
	}
	o.Err = nil
	telemetry, reader, spans := newTelemetry(t, Config{DisableSpans: true})
	telemetry.Observe(t.Context(), o)
	if s := spans.Ended(); len(s) != 0 || len(read(t, reader)) == 0 {
		t.Errorf("DisableSpans: %v", s)
	}
}

func BenchmarkObserve(b *testing.B) {
	t, err := New(&Config{MeterProvider: metric.NewMeterProvider(metric.WithReader(metric.NewManualReader())), DisableSpans: true})
	if err != nil {
		b.Fatal(err)
	}
	o := limiter.Observation{Verb: limiter.VerbAllow, Request: limiter.Policy{Name: "login"}.Request("k", 1), Result: limiter.Result{Allowed: true, Granted: 1}, Rows: 3}
	b.ReportAllocs()
	for b.Loop() {
		t.Observe(context.Background(), o)
	}
}
