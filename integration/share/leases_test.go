package share

import (
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// lessee is a limiter that takes leases of a policy's key, and the units that it was granted.
type lessee struct {
	*testing.T
	*limiter.Limiter
	limiter.Policy
	used float64
}

// granted counts a grant, and fails the test if it is none of a row.
func (s *lessee) granted(what string, r limiter.Result, err error) {
	s.Helper()
	if s.used += r.Granted; err != nil || !r.Allowed || r.Source != limiter.SourceDatabase {
		s.Errorf("%s: %+v, %v; want a grant of the row", what, r, err)
	}
}

// lease requests units until n come from leases.
func (s *lessee) lease(n int) {
	s.Helper()
	for asked := 0; n > 0; asked++ {
		r := testworld.Must(s.T)(s.Allow(s.Context(), s.Policy, "hot"))
		if s.used += r.Granted; !r.Allowed || asked == 10_000 {
			s.Fatalf("after %d requests, %+v; %d from leases are missing", asked, r, n)
		}
		if r.Source == limiter.SourceLease {
			n--
		}
	}
}

// TestLeasesOfTwoProcesses: requests are granted from leases of either, all other verbs use the
// row, and in the end it has counted what was used.
func TestLeasesOfTwoProcesses(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	window := limiter.Policy{Name: "window", Algorithm: limiter.FixedWindow, Limit: 1e6, Period: bucket.Period, Lease: 0.05}
	token := bucket
	token.Burst, token.Lease = 1e6, 0.05
	for i, w := range testworld.Ways(t, address, false)[:3] { // one for each driver
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			pool := testworld.Connect(t, address)
			two := testworld.NewLimiter(t, pool, nil)
			for _, p := range []limiter.Policy{token, window} {
				p.Name += string(rune('a' + i))
				a, b := &lessee{t, w.L, p, 0}, &lessee{t, two, p, 0}
				a.lease(50)
				must.Succeed(t, a.Block(t.Context(), p, "hot", time.Hour))
				if r, err := a.Allow(t.Context(), p, "hot"); err != nil || r.Allowed || r.Reason != limiter.ReasonBlocked {
					t.Errorf("after Block: %+v, %v", r, err)
				}
				must.Succeed(t, a.Reset(t.Context(), p, "hot"))
				a.used = 0 // what a block from before would grant now, the row does not have
				a.lease(50)
				b.lease(50)
				a.verbs(w)
				a.lease(1)
				ended := testworld.Value[float64](t, pool, "SELECT level FROM "+testworld.TableOf(p.Algorithm)+" WHERE policy = $1 AND key = 'hot'", p.Name)
				if ended < a.used+b.used {
					t.Errorf("the row has counted %v units; %v and %v were used", ended, a.used, b.used)
				}
				defer func() {
					if got := testworld.Value[float64](t, pool, "SELECT level FROM "+testworld.TableOf(p.Algorithm)+" WHERE policy = $1 AND key = 'hot'", p.Name); !testworld.Near(got, a.used+b.used) {
						t.Errorf("%s: in the end %v units are counted; %v and %v were used", p.Algorithm, got, a.used, b.used)
					}
				}()
			}
			if err := w.L.Close(); err != nil {
				t.Error(err)
			}
			if err := two.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// verbs requests units of the key in all ways that no lease grants.
func (s *lessee) verbs(w testworld.Way) {
	s.Helper()
	tx := w.Start(s.T)
	r, err := tx.Allow(s.Context(), s.Policy, "hot")
	s.granted("in a transaction", r, err)
	tx.End(s.T, true)
	request := s.Request("hot", 2)
	s.granted("Reserve", testworld.Reserve(s.T, s.Limiter, request, time.Hour).Result, nil)
	all, err := s.AllowAll(s.Context(), request, s.Request("other", 1))
	s.granted("AllowAll", all.PerRequest[0], err)
	r, err = s.Charge(s.Context(), s.Policy, "hot", 3)
	s.granted("Charge", r, err)
	request.IdempotencyKey = "once"
	r, err = s.Do(s.Context(), request)
	s.granted("Do with an idempotency key", r, err)
}
