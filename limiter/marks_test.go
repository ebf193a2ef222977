package limiter

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// TestMarksOfPolicy: marks are percentages in rising order, in their shortest form.
func TestMarksOfPolicy(t *testing.T) {
	t.Parallel()
	p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 10, Period: time.Hour}
	for text, want := range map[string][]int64{
		"": nil, "80%": {800_000}, "80%,100%": {800_000, 1_000_000}, "0.0001%,0.5%,33.3333%": {1, 5_000, 333_333}, "1%,2%,3%,4%,5%,6%,7%,8%": {1e4, 2e4, 3e4, 4e4, 5e4, 6e4, 7e4, 8e4},
	} {
		p.Marks = text
		if got, err := p.marks(); err != nil || !slices.Equal(got, want) || p.Validate() != nil {
			t.Errorf("%q: %v, %v, %v", text, got, err, p.Validate())
		}
	}
	for _, text := range []string{"80", "%", "80%,", ",80%", "80%, 100%", "100%,80%", "80%,80%", "0%", "-1%", "101%", "1e9%", "NaN%", "080%", "80.0%", "+80%", "0.00001%", "0x1p3%", "1%,2%,3%,4%,5%,6%,7%,8%,9%"} {
		p.Marks = text
		var bad *PolicyError
		if err := p.Validate(); !errors.As(err, &bad) || bad.Field != "Marks" {
			t.Errorf("%q: %v", text, err)
		}
	}
	p.Marks = "80%"
	for _, change := range []func(*Policy){
		func(p *Policy) { p.Algorithm = LeakyBucketQueue }, func(p *Policy) { p.Lease = 0.1 },
		func(p *Policy) { p.Algorithm, p.BlockFor = Attempts, time.Minute },
	} {
		q := p
		if change(&q); q.Validate() == nil {
			t.Errorf("%+v is valid", q)
		}
	}
}

// TestUsageOfPolicy: sums are of hours or days, and are kept for a bounded time. Policies whose
// decisions cannot record them are refused.
func TestUsageOfPolicy(t *testing.T) {
	t.Parallel()
	p := PerHour("p", 10)
	for _, c := range []struct {
		by   Calendar
		keep time.Duration
		want store.Sums
	}{
		{"", 0, store.Sums{}},
		{Hour, 0, store.Sums{Span: 3600e6, Keep: 31 * 86400e6}},
		{Day, 0, store.Sums{Span: 86400e6, Keep: 400 * 86400e6}},
		{Hour, time.Hour, store.Sums{Span: 3600e6, Keep: 3600e6}},
		{Day, 3650 * day, store.Sums{Span: 86400e6, Keep: 3650 * 86400e6}},
	} {
		p.UsageBy, p.UsageFor = c.by, c.keep
		if err := p.Validate(); err != nil || p.sums() != c.want {
			t.Errorf("%s for %v: %+v, %v", c.by, c.keep, p.sums(), err)
		}
	}
	for name, change := range map[string]func(*Policy){
		"UsageBy":                 func(p *Policy) { p.UsageBy = Week },
		"UsageFor":                func(p *Policy) { p.UsageBy, p.UsageFor = "", day },
		"UsageFor by the day":     func(p *Policy) { p.UsageFor = time.Hour },
		"UsageFor for longer":     func(p *Policy) { p.UsageFor = 3651 * day },
		"UsageFor of fractions":   func(p *Policy) { p.UsageFor = day + time.Millisecond },
		"UsageFor below zero":     func(p *Policy) { p.UsageFor = -day },
		"UsageBy with a Lease":    func(p *Policy) { p.Lease = 0.1 },
		"UsageBy with a queue":    func(p *Policy) { p.Algorithm = LeakyBucketQueue },
		"UsageBy without a limit": func(p *Policy) { *p = Policy{Name: "p", Algorithm: Balance, UsageBy: Day} },
	} {
		p := PerHour("p", 10)
		p.UsageBy = Day
		change(&p)
		var bad *PolicyError
		if err := p.Validate(); !errors.As(err, &bad) || bad.Field != strings.Fields(name)[0] {
			t.Errorf("%s: %v", name, err)
		}
	}
}
