package limiter

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"
)

// denied counts what it observes, by policy, key and verb.
type denied map[string]int

func (d denied) Observe(_ context.Context, o Observation) {
	d[o.Request.Policy.Name+"/"+o.Request.Key+" "+string(o.Verb)]++
}

// TestDenialLog: Config.DenialLog observes every denial, and nothing else.
func TestDenialLog(t *testing.T) {
	t.Parallel()
	now, _ := manualClock()
	d := denied{}
	l, _ := watched(t, true, &Config{Now: now, DenialLog: d})
	p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 2, Period: time.Hour}
	shadow := Policy{Name: "shadow", Algorithm: GCRA, Limit: 2, Period: time.Hour, Shadow: true, BlockFor: time.Minute}
	queue := Policy{Name: "queue", Algorithm: LeakyBucketQueue, Limit: 1, Period: time.Hour, Burst: 1}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil && !errors.As(err, new(*DeniedError)) {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	for range 4 { // granted, denied, and remembered
		must(l.AllowN(ctx, p, "k", 2))
		must(l.AllowN(ctx, shadow, "k", 2)) // the third is blocked
	}
	must(l.Check(ctx, p, "k", 1))
	must(l.Charge(ctx, p, "k", 1))
	must(l.Usage(ctx, p, "k"))
	must(l.AllowUpTo(ctx, p, "k", 5))
	must(l.AllowUpTo(ctx, p, "partly", 5))
	must(l.AllowUpTo(ctx, shadow, "partly", 5))
	must(l.Reserve(ctx, p.Request("k", 1), time.Hour))
	must(l.InTx(nil).Allow(ctx, p, "k"))
	must(nil, l.Wait(ctx, queue, "k", 1))
	must(nil, l.Wait(ctx, queue, "k", 1))
	must(l.AllowAll(ctx, p.Request("k", 1), p.Request("other", 1), shadow.Request("k", 1)))
	must(l.AllowAll(ctx, p.Request("free", 1), shadow.Request("k", 1)))
	if _, err := l.AllowN(ctx, p, "k", -1); err == nil {
		t.Error("no error")
	}
	want := denied{
		"p/k allow": 4, "p/k allow_up_to": 1, "p/k reserve": 1, "p/k allow_all": 1, "p/k check": 1,
		"queue/k wait": 1, "shadow/k allow": 3, "shadow/k allow_all": 1,
	}
	if !maps.Equal(d, want) {
		t.Errorf("observed %v, want %v", d, want)
	}
}
