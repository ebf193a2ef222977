package otelpglimit_test

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/otelpglimit"
)

func Example() {
	reader := metric.NewManualReader() // an application has an exporter
	telemetry, err := otelpglimit.New(&otelpglimit.Config{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
	if err != nil {
		fmt.Println(err)
		return
	}
	l := limiter.NewMemory(&limiter.Config{Observe: telemetry.Observe})
	telemetry.Watch(l)

	p := limiter.Policy{Name: "login", Algorithm: limiter.FixedWindow, Limit: 2, Period: time.Hour}
	for range 3 {
		_, _ = l.Allow(context.Background(), p, "alice")
	}
	var all metricdata.ResourceMetrics
	_ = reader.Collect(context.Background(), &all)
	for _, m := range all.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
			total := int64(0)
			for _, p := range sum.DataPoints {
				total += p.Value
			}
			fmt.Println(m.Name, total)
		}
	}
	// Output: pglimit.decisions 3
}
