package limiter

import (
	"errors"
	"slices"
	"testing"
	"time"
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
