package policies_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// TestApplyValidates: nothing is written if anything is not valid, and the error names it.
func TestApplyValidates(t *testing.T) {
	t.Parallel()
	window := limiter.Policy{Name: "window", Algorithm: limiter.FixedWindow, Limit: 3, Period: time.Hour}
	exports := limiter.Policy{Name: "exports", Algorithm: limiter.Concurrency, Limit: 3, Period: time.Minute}
	logins := limiter.Policy{Name: "logins", Algorithm: limiter.Attempts, Limit: 3, Period: time.Hour, BlockFor: time.Minute}
	p := must.OK(policies.New(window, logins, exports))(t)
	good := policies.Stored{Policy: three}
	with := func(change func(*policies.Stored)) policies.Edit {
		bad := policies.Stored{Policy: three}
		bad.Name = "bad"
		change(&bad)
		return policies.Edit{Set: []policies.Stored{good, bad}}
	}
	of := func(o policies.Override) policies.Edit {
		if o.Policy == "" {
			o.Policy = "three"
		}
		return policies.Edit{Set: []policies.Stored{good}, SetOverrides: []policies.Override{o}}
	}
	long := strings.Repeat("é", 1001)
	for name, c := range map[string]struct {
		edit policies.Edit
		want string
	}{
		"limit":            {with(func(p *policies.Stored) { p.Limit = -1 }), "Limit -1"},
		"ttl":              {with(func(p *policies.Stored) { p.MaxTTL = time.Second - 1 }), "MaxTTL 999"},
		"long ttl":         {with(func(p *policies.Stored) { p.MaxTTL = math.MaxInt64 }), "MaxTTL"},
		"note":             {with(func(p *policies.Stored) { p.Note = long }), "Note"},
		"NUL":              {policies.Edit{Set: []policies.Stored{good}, Note: "\x00"}, "Note"},
		"twice":            {policies.Edit{Set: []policies.Stored{good, good}}, "twice"},
		"set and delete":   {policies.Edit{Set: []policies.Stored{good}, Delete: []string{"three"}}, "twice"},
		"name":             {policies.Edit{Set: []policies.Stored{good}, Delete: []string{"A"}}, `Delete[0] "A"`},
		"override":         {of(policies.Override{Key: "k"}), "changes nothing"},
		"override's limit": {of(policies.Override{Key: "k", Limit: new(math.NaN())}), "Override.Limit NaN"},
		"override's burst": {of(policies.Override{Key: "k", Burst: new(1e17)}), "Override.Burst 1e+17"},
		"factor":           {of(policies.Override{Key: "k", Factor: new(-1.0)}), "Override.Factor -1"},
		"factor of what":   {of(policies.Override{Key: "k", Factor: new(2.0), Limit: new(2.0)}), "excludes Limit"},
		"burst 0":          {of(policies.Override{Key: "k", Burst: new(0.0)}), "needs Limit"},
		"burst of windows": {of(policies.Override{Policy: "window", Key: "k", Burst: new(4.0)}), "fixed_window"},
		"half a slot":      {of(policies.Override{Policy: "exports", Key: "k", Factor: new(0.5)}), "Limit 1.5: must be whole"},
		"half a failure":   {of(policies.Override{Policy: "logins", Key: "k", Limit: new(2.5)}), "Limit 2.5: must be whole"},
		"times of failure": {of(policies.Override{Policy: "logins", Key: "k", Factor: new(1.5)}), "Limit 4.5: must be whole"},
		"many at once":     {of(policies.Override{Policy: "logins", Key: "k", Burst: new(101.0)}), "Burst 101: must be whole"},
		"unlimited":        {of(policies.Override{Key: "k", Unlimited: true, Shadow: new(true)}), "excludes"},
		"until":            {of(policies.Override{Key: "k", Unlimited: true, Until: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}), "Until"},
		"until the epoch":  {of(policies.Override{Key: "k", Unlimited: true, Until: time.Unix(0, 900)}), "Until"},
		"before the epoch": {of(policies.Override{Key: "k", Unlimited: true, Until: time.Unix(-1, 0)}), "Until"},
		"no key":           {of(policies.Override{Unlimited: true}), "key"},
		"long key":         {of(policies.Override{Key: strings.Repeat("k", 1025), Unlimited: true}), "1024"},
		"policy's name":    {of(policies.Override{Policy: "A b", Key: "k", Unlimited: true}), `Override.Policy "A b"`},
		"override twice": {policies.Edit{SetOverrides: []policies.Override{{Policy: "three", Key: "k", Unlimited: true}},
			DeleteOverrides: []policies.Override{{Policy: "three", Key: "k"}}}, "twice"},
	} {
		if _, err := p.Apply(t.Context(), c.edit); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, edit := range map[string]policies.Edit{
		"policy":   {Set: []policies.Stored{good}, Delete: []string{"window"}},
		"override": {Set: []policies.Stored{good}, DeleteOverrides: []policies.Override{{Policy: "window", Key: "k"}}},
	} {
		if _, err := p.Apply(t.Context(), edit); !errors.Is(err, policies.ErrNoPolicy) || !strings.Contains(err.Error(), `"window"`) {
			t.Errorf("delete a missing %s: %v", name, err)
		}
	}
	if p.Version() != 0 || len(p.List()) != 0 {
		t.Errorf("version %d, %+v", p.Version(), p.List())
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	if _, err := policies.New(three, limiter.Policy{Name: "x"}); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("an invalid default: %v", err)
	}
	p := must.OK(policies.New(three))(t)
	limit := func(want float64) {
		t.Helper()
		if got, err := p.Get("three"); err != nil || got.Limit != want {
			t.Errorf("%+v, %v; want limit %v", got, err, want)
		}
	}
	limit(3)
	stored := policies.Stored{Policy: three, Note: "more"}
	stored.Limit = 4
	must.OK(p.Apply(t.Context(), policies.Edit{Set: []policies.Stored{stored}}))(t)
	limit(4)
	later := three
	later.Limit = 5
	must.Succeed(t, p.Default(later))
	limit(4)
	must.OK(p.Apply(t.Context(), policies.Edit{Delete: []string{"three"}, Note: "not needed"}))(t)
	limit(5)
	if _, err := p.Get("other"); !errors.Is(err, policies.ErrNoPolicy) {
		t.Errorf("another name: %v", err)
	}
	if _, err := p.Apply(t.Context(), policies.Edit{IfVersion: 1, Set: []policies.Stored{stored}}); !errors.Is(err, policies.ErrChanged) {
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

// TestStoredText: nothing that is stored is lost in JSON.
func TestStoredText(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC)
	for want, p := range map[string]policies.Stored{
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
		`{"name":"d","algorithm":"attempts","limit":3,"period":"24h","burst":2,"block_for":"1m","block_growth":1.5,"block_max":"12h"}`: {
			Policy: limiter.Policy{
				Name: "d", Algorithm: limiter.Attempts, Limit: 3, Period: 24 * time.Hour, Burst: 2, BlockFor: time.Minute, BlockGrowth: 1.5, BlockMax: 12 * time.Hour,
			},
		},
		`{"name":"b","algorithm":"fixed_window","limit":1,"calendar":"year","anchor":"2024-04-06"}`: {
			Policy: limiter.Policy{Name: "b", Algorithm: limiter.FixedWindow, Limit: 1, Calendar: limiter.Year, Anchor: "2024-04-06"},
		},
	} {
		data, err := json.Marshal(p)
		if err != nil || string(data) != want {
			t.Errorf("got  %s, %v\nwant %s", data, err, want)
		}
		var back policies.Stored
		if err := json.Unmarshal(data, &back); err != nil || back != p {
			t.Errorf("%s came back as %+v, %v", data, back, err)
		}
	}
	for text, want := range map[string]string{`{"name":"a","max_ttl":"soon"}`: "MaxTTL", `{"name":"a","nte":"x"}`: "nte", `{"period":"x"}`: "Period"} {
		var p policies.Stored
		if err := json.Unmarshal([]byte(text), &p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	data, err := json.Marshal(policies.Override{Policy: "a", Key: "k", Limit: new(5.0), Until: at})
	if want := `{"policy":"a","key":"k","limit":5,"until":"2030-01-02T03:04:05.000006Z"}`; err != nil || string(data) != want {
		t.Errorf("got %s, %v, want %s", data, err, want)
	}
}
