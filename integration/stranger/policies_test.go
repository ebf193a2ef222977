package stranger

import (
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// TestStrangersInPolicies changes policies and overrides with all planted objects in the
// search_path. The triggers' functions run too, with each branch that a change can reach.
func TestStrangersInPolicies(t *testing.T) {
	t.Parallel()
	address, _ := bed.PlantedDatabase(t)
	pool := bed.Connect(t, address)
	p, err := limiter.OpenPolicies(t.Context(), pool, &limiter.PoliciesConfig{PollEvery: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	limit, shadow := 5.0, true
	month := limiter.Policy{Name: "month", Algorithm: limiter.FixedWindow, Limit: 10, Calendar: limiter.Month, TimeZone: "Europe/Vienna"}
	bucket := limiter.Policy{Name: "bucket", Algorithm: limiter.LeakyBucket, Limit: 10, Period: time.Second, Burst: 20, Tick: time.Second, BlockFor: time.Second}
	edit := limiter.PolicyEdit{
		Set: []limiter.StoredPolicy{{Policy: month}, {Policy: bucket}},
		SetOverrides: []limiter.Override{
			{Policy: "month", Key: "k", Limit: &limit, Shadow: &shadow, Until: time.Now().Add(time.Hour)}, {Policy: "month", Key: "free", Unlimited: true},
		},
	}
	for range 2 { // new, and as they are
		if _, err := p.Apply(t.Context(), edit); err != nil {
			t.Fatal(err)
		}
	}
	edit.Set[0].Limit, edit.SetOverrides[0].Note = 11, "changed"
	if v, err := p.Apply(t.Context(), edit); err != nil || v != 2 {
		t.Errorf("version %d, %v", v, err)
	}
	bed.Exec(t, pool, `UPDATE pglimit_policy SET name = 'renamed', limit_units = 12 WHERE name = 'month'`)
	bed.Exec(t, pool, `UPDATE pglimit_override SET key = 'l', burst = 3 WHERE key = 'k'`)
	if _, err := p.Apply(t.Context(), limiter.PolicyEdit{Delete: []string{"bucket"}, DeleteOverrides: []limiter.Override{{Policy: "month", Key: "l"}}, Note: "over"}); err != nil {
		t.Error(err)
	}
	if h, err := p.History(t.Context(), "month", 100); err != nil || len(h) < 8 {
		t.Errorf("%+v, %v", h, err)
	}
}
