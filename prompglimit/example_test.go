package prompglimit_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/prompglimit"
)

func Example() {
	metrics := prompglimit.New(nil)
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	l := limiter.NewMemory(&limiter.Config{Observe: metrics.Observe})
	metrics.Watch(l)

	p := limiter.Policy{Name: "login", Algorithm: limiter.FixedWindow, Limit: 2, Period: time.Hour}
	for range 3 {
		_, _ = l.Allow(context.Background(), p, "alice")
	}
	families, _ := registry.Gather() // promhttp.HandlerFor serves them
	for _, f := range families {
		if f.GetName() != "pglimit_decisions_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			fmt.Println(strings.Join(labels, " "), m.GetCounter().GetValue())
		}
	}
	// Output:
	// outcome=allowed policy=login source=memory verb=allow 2
	// outcome=denied policy=login source=memory verb=allow 1
}
