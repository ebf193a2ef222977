package limiter

import (
	"testing"
	"time"
)

// versions are Policies whose limit is higher in each snapshot.
type versions struct{ asked float64 }

// limited is a snapshot of them.
type limited float64

func (v *versions) Snapshot() Overrides {
	v.asked++
	return limited(v.asked)
}

func (l limited) Override(p *Policy, _ string, _ func() time.Time) (r Ruling) {
	p.Limit = float64(l)
	return r
}

// TestPoliciesAreAskedOnce: all requests of a method are decided under one version of the
// overrides, even if that changes meanwhile.
func TestPoliciesAreAskedOnce(t *testing.T) {
	t.Parallel()
	v := new(versions)
	l := NewMemory(&Config{Policies: v})
	p := PerHour("p", 100)
	all, err := l.AllowAll(t.Context(), p.Request("k", 0.2), p.Request("k", 0.2), p.Request("other", 0.2))
	if err != nil || !all.Allowed || v.asked != 1 {
		t.Errorf("%v, %v, asked %v times", all.Allowed, err, v.asked)
	}
	for i, r := range all.PerRequest {
		if r.Limit != 1 {
			t.Errorf("request %d was decided under version %v", i, r.Limit)
		}
	}
	if r, err := l.Allow(t.Context(), p, "k"); err != nil || r.Limit != 2 || v.asked != 2 {
		t.Errorf("one request: %+v, %v, asked %v times", r, err, v.asked)
	}
}
