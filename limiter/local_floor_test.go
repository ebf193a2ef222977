package limiter

import "testing"

// TestLocalFloor: a request with a Floor leaves that share of its part free, alone and with others.
func TestLocalFloor(t *testing.T) {
	for _, p := range localPolicies() {
		for name, ask := range map[string]func(*away, Request) (bool, error){
			"Do": func(a *away, in Request) (bool, error) {
				r, err := a.Do(a.Context(), in)
				return r.Allowed, err
			},
			"AllowAll": func(a *away, in Request) (bool, error) {
				all, err := a.AllowAll(a.Context(), in, p.Request("other", 0.001))
				return all.Allowed, err
			},
		} {
			inAway(t, nil, func(a *away) {
				drain := func(floor float64) (n int) {
					for {
						allowed, err := ask(a, Request{Policy: p, Key: "k", Cost: 1, Floor: floor})
						if err != nil {
							a.Fatalf("%s, %s: %v", p.Algorithm, name, err)
						}
						if !allowed {
							return n
						}
						n++
					}
				}
				a.allow(p, "k", 40)
				a.leave()
				for _, c := range []struct {
					floor float64
					want  int
				}{{0.4, 5}, {0.2, 5}, {0.2, 0}, {0, 5}} {
					if n := drain(c.floor); n != c.want {
						a.Errorf("%s, %s: above %v of a part of 25 with 10 in use: granted %d, want %d", p.Algorithm, name, c.floor, n, c.want)
					}
				}
				a.back()
				a.expectLevel(p, "k", 55)
			})
		}
	}
}
