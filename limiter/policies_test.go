package limiter_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// TestApplyValidates: nothing is written if anything is not valid, and the error names it.
func TestApplyValidates(t *testing.T) {
	t.Parallel()
	window := limiter.Policy{Name: "window", Algorithm: limiter.FixedWindow, Limit: 3, Period: time.Hour}
	p, err := limiter.NewPolicies(window)
	if err != nil {
		t.Fatal(err)
	}
	good := limiter.StoredPolicy{Policy: three}
	with := func(change func(*limiter.StoredPolicy)) limiter.PolicyEdit {
		bad := limiter.StoredPolicy{Policy: three}
		bad.Name = "bad"
		change(&bad)
		return limiter.PolicyEdit{Set: []limiter.StoredPolicy{good, bad}}
	}
	of := func(o limiter.Override) limiter.PolicyEdit {
		if o.Policy == "" {
			o.Policy = "three"
		}
		return limiter.PolicyEdit{Set: []limiter.StoredPolicy{good}, SetOverrides: []limiter.Override{o}}
	}
	long := strings.Repeat("é", 1001)
	for name, c := range map[string]struct {
		edit limiter.PolicyEdit
		want string
	}{
		"limit":            {with(func(p *limiter.StoredPolicy) { p.Limit = -1 }), "Limit -1"},
		"ttl":              {with(func(p *limiter.StoredPolicy) { p.MaxTTL = time.Second - 1 }), "MaxTTL 999"},
		"long ttl":         {with(func(p *limiter.StoredPolicy) { p.MaxTTL = math.MaxInt64 }), "MaxTTL"},
		"note":             {with(func(p *limiter.StoredPolicy) { p.Note = long }), "Note"},
		"NUL":              {limiter.PolicyEdit{Set: []limiter.StoredPolicy{good}, Note: "\x00"}, "Note"},
		"twice":            {limiter.PolicyEdit{Set: []limiter.StoredPolicy{good, good}}, "twice"},
		"set and delete":   {limiter.PolicyEdit{Set: []limiter.StoredPolicy{good}, Delete: []string{"three"}}, "twice"},
		"name":             {limiter.PolicyEdit{Set: []limiter.StoredPolicy{good}, Delete: []string{"A"}}, `Delete[0] "A"`},
		"override":         {of(limiter.Override{Key: "k"}), "changes nothing"},
		"override's limit": {of(limiter.Override{Key: "k", Limit: ptr(math.NaN())}), "Override.Limit NaN"},
		"override's burst": {of(limiter.Override{Key: "k", Burst: ptr(1e17)}), "Override.Burst 1e+17"},
		"factor":           {of(limiter.Override{Key: "k", Factor: ptr(-1.0)}), "Override.Factor -1"},
		"factor of what":   {of(limiter.Override{Key: "k", Factor: ptr(2.0), Limit: ptr(2.0)}), "excludes Limit"},
		"burst 0":          {of(limiter.Override{Key: "k", Burst: ptr(0.0)}), "needs Limit"},
		"burst of windows": {of(limiter.Override{Policy: "window", Key: "k", Burst: ptr(4.0)}), "fixed_window"},
		"unlimited":        {of(limiter.Override{Key: "k", Unlimited: true, Shadow: ptr(true)}), "excludes"},
		"until":            {of(limiter.Override{Key: "k", Unlimited: true, Until: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}), "Until"},
		"until the epoch":  {of(limiter.Override{Key: "k", Unlimited: true, Until: time.Unix(0, 900)}), "Until"},
		"before the epoch": {of(limiter.Override{Key: "k", Unlimited: true, Until: time.Unix(-1, 0)}), "Until"},
		"no key":           {of(limiter.Override{Unlimited: true}), "key"},
		"long key":         {of(limiter.Override{Key: strings.Repeat("k", 1025), Unlimited: true}), "1024"},
		"policy's name":    {of(limiter.Override{Policy: "A b", Key: "k", Unlimited: true}), `Override.Policy "A b"`},
		"override twice": {limiter.PolicyEdit{SetOverrides: []limiter.Override{{Policy: "three", Key: "k", Unlimited: true}},
			DeleteOverrides: []limiter.Override{{Policy: "three", Key: "k"}}}, "twice"},
	} {
		if _, err := p.Apply(t.Context(), c.edit); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, edit := range map[string]limiter.PolicyEdit{
		"policy":   {Set: []limiter.StoredPolicy{good}, Delete: []string{"window"}},
		"override": {Set: []limiter.StoredPolicy{good}, DeleteOverrides: []limiter.Override{{Policy: "window", Key: "k"}}},
	} {
		if _, err := p.Apply(t.Context(), edit); !errors.Is(err, limiter.ErrNoPolicy) || !strings.Contains(err.Error(), `"window"`) {
			t.Errorf("delete a missing %s: %v", name, err)
		}
	}
	if p.Version() != 0 || len(p.List()) != 0 {
		t.Errorf("version %d, %+v", p.Version(), p.List())
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	if _, err := limiter.NewPolicies(three, limiter.Policy{Name: "x"}); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("an invalid default: %v", err)
	}
	p, err := limiter.NewPolicies(three)
	if err != nil {
		t.Fatal(err)
	}
	limit := func(want float64) {
		t.Helper()
		if got, err := p.Get("three"); err != nil || got.Limit != want {
			t.Errorf("%+v, %v; want limit %v", got, err, want)
		}
	}
	limit(3)
	stored := limiter.StoredPolicy{Policy: three, Note: "more"}
	stored.Limit = 4
	if _, err := p.Apply(t.Context(), limiter.PolicyEdit{Set: []limiter.StoredPolicy{stored}}); err != nil {
		t.Fatal(err)
	}
	limit(4)
	later := three
	later.Limit = 5
	if err := p.Default(later); err != nil {
		t.Fatal(err)
	}
	limit(4)
	if _, err := p.Apply(t.Context(), limiter.PolicyEdit{Delete: []string{"three"}, Note: "not needed"}); err != nil {
		t.Fatal(err)
	}
	limit(5)
	if _, err := p.Get("other"); !errors.Is(err, limiter.ErrNoPolicy) {
		t.Errorf("another name: %v", err)
	}
	if _, err := p.Apply(t.Context(), limiter.PolicyEdit{IfVersion: 1, Set: []limiter.StoredPolicy{stored}}); !errors.Is(err, limiter.ErrPolicyChanged) {
		t.Errorf("IfVersion: %v", err)
	}
	h, err := p.History(t.Context(), "three", 10)
	if err != nil || len(h) != 2 || h[0].Note != "not needed" || h[0].After != nil || h[0].Before.Limit != 4 || h[1].After.Note != "more" || h[1].Before != nil {
		t.Errorf("%+v, %v", h, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	limit(5)
}

// TestStoredPolicyText: nothing that is stored is lost in JSON.
func TestStoredPolicyText(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC)
	for want, p := range map[string]limiter.StoredPolicy{
		`{"name":"a","algorithm":"gcra","limit":5,"period":"1m","shadow":true,"askers":true,"max_ttl":"1h","note":"why","version":7,"changed_at":"2030-01-02T03:04:05.000006Z","changed_by":"app"}`: {
			Policy: limiter.Policy{Name: "a", Algorithm: limiter.GCRA, Limit: 5, Period: time.Minute, Shadow: true},
			Note:   "why", Askers: true, MaxTTL: time.Hour, Version: 7, ChangedAt: at, ChangedBy: "app",
		},
		`{"name":"c","algorithm":"leaky_bucket","limit":1,"period":"2s","burst":3,"tick":"4s","aligned":true,"calendar":"day","time_zone":"UTC","block_for":"5s","durability":"relaxed","on_error":"fail_local","local_share":0.25}`: {
			Policy: limiter.Policy{
				Name: "c", Algorithm: limiter.LeakyBucket, Limit: 1, Period: 2 * time.Second, Burst: 3, Tick: 4 * time.Second, Aligned: true,
				Calendar: limiter.Day, TimeZone: "UTC", BlockFor: 5 * time.Second, Durability: limiter.Relaxed, OnError: limiter.FailLocal, LocalShare: 0.25,
			},
		},
		`{"name":"b","algorithm":"fixed_window","limit":1,"calendar":"month"}`: {
			Policy: limiter.Policy{Name: "b", Algorithm: limiter.FixedWindow, Limit: 1, Calendar: limiter.Month},
		},
	} {
		data, err := json.Marshal(p)
		if err != nil || string(data) != want {
			t.Errorf("got  %s, %v\nwant %s", data, err, want)
		}
		var back limiter.StoredPolicy
		if err := json.Unmarshal(data, &back); err != nil || back != p {
			t.Errorf("%s came back as %+v, %v", data, back, err)
		}
	}
	for text, want := range map[string]string{`{"name":"a","max_ttl":"soon"}`: "MaxTTL", `{"name":"a","nte":"x"}`: "nte", `{"period":"x"}`: "Period"} {
		var p limiter.StoredPolicy
		if err := json.Unmarshal([]byte(text), &p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	data, err := json.Marshal(limiter.Override{Policy: "a", Key: "k", Limit: ptr(5.0), Until: at})
	if want := `{"policy":"a","key":"k","limit":5,"until":"2030-01-02T03:04:05.000006Z"}`; err != nil || string(data) != want {
		t.Errorf("got %s, %v, want %s", data, err, want)
	}
}
