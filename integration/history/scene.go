//go:build unix

package history

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

const (
	unit   = 1 << 20 // microseconds: periods are a power of two, so that all rates are exact
	period = unit * time.Microsecond
	// remember is the limiters' IdempotencyTTL.
	remember = 3 * period
	// cacheFor is their DenyCacheTTL.
	cacheFor = period / 2
)

// scene is the keys of one history, one of each policy: its operations share no state with those of others.
// Seed and number define it.
type scene struct {
	number  int
	name    string             // of its keys
	plans   [][]limiter.Policy // of each key
	board   board
	clients int
	ops     int // of each client
	themes
}

// themes are the kinds of operations that a scene has besides the usual ones.
type themes struct {
	Reserves, Expires, Idempotent, Tx, SQL, Loses, Attempts, Slots, Balances, Floors, UpTo, Bounded, Several, Sums bool
}

// forms are what a scene may be about. usual has all verbs of limits.
var forms = flag.String("forms", "usual usual usual attempts slots balances upto floors keys several sums", "what histories are about; one may stand there again")

// The scenes that run at once, and their size.
const (
	atOnce     = 4
	clients    = 4
	opsPerTurn = 10
)

// drawRound draws the scenes that run at once. In every second round answers get lost.
func drawRound(seed uint64, round int) (scenes []*scene) {
	for i := range atOnce {
		scenes = append(scenes, newScene(seed, round*atOnce+i, clients, opsPerTurn, round%2 == 1))
	}
	return scenes
}

// newScene draws a scene. clients share its operations.
func newScene(seed uint64, number, clients, ops int, loses bool) *scene {
	r := rand.New(rand.NewPCG(seed, uint64(number)))
	s := &scene{number: number, name: fmt.Sprintf("key-%d", number), clients: clients, ops: ops}
	all := strings.Fields(*forms)
	form, keys := all[r.IntN(len(all))], 1
	s.themes = themes{Loses: loses, Idempotent: r.IntN(2) == 0, SQL: r.IntN(3) == 0, Tx: r.IntN(2) == 0, Floors: form == "floors"}
	switch form {
	case "attempts":
		s.Attempts, s.Idempotent, s.SQL = true, false, false
	case "slots":
		s.Slots, s.Idempotent, s.SQL = true, false, false
	case "balances":
		s.Balances, keys = true, 1+r.IntN(3)/2
		s.Reserves = r.IntN(3) > 0
		s.Expires = s.Reserves && r.IntN(2) == 0
		s.ops = ops - 3 // lots differ by the order of all that came before
		if s.Expires {
			s.clients, s.ops = clients/2, ops-2
		} else if s.Reserves || keys > 1 {
			s.clients = clients - 1
		}
	case "upto": // estimates are corrected once five are settled
		s.UpTo, s.Reserves, s.Idempotent, s.Tx = true, true, false, false
		s.clients, s.ops = clients/2, 2*ops
	case "several":
		s.Several, s.SQL, s.Tx, keys = true, false, false, 2+r.IntN(2)
		s.clients, s.ops = clients-1, ops-3
	case "keys":
		s.Bounded, s.Idempotent, s.SQL, s.Tx, keys, s.ops = true, false, false, false, 4, 2*ops
	default:
		if s.Sums = form == "sums"; s.Sums {
			s.SQL = false
		} else if r.IntN(3) == 0 {
			keys = 2 + r.IntN(2)
		}
		s.Reserves, s.Expires = r.IntN(2) == 0, r.IntN(2) == 0
		if s.Expires = s.Expires && s.Reserves && !s.Floors; s.Expires { // each request may give reservations back, in separate statements
			s.clients, s.ops = clients-1, ops-2
		}
		if s.Expires && keys == 1 && r.IntN(2) == 0 { // no other client explains a denial
			s.clients, s.ops = 1, clients*ops
		}
	}
	for i := range keys {
		if s.Bounded && i > 0 {
			s.plans = append(s.plans, s.plans[0])
			continue
		}
		s.plans = append(s.plans, s.drawPlans(r, fmt.Sprintf("scene-%d-%d", number, i)))
	}
	slices.SortFunc(s.plans, func(a, b []limiter.Policy) int { // the order in which rows are locked
		order := limiter.Algorithms()
		return cmp.Or(cmp.Compare(slices.Index(order, a[0].Algorithm), slices.Index(order, b[0].Algorithm)), cmp.Compare(a[0].Name, b[0].Name))
	})
	return s
}

// drawPlans draws the policies of a key.
func (s *scene) drawPlans(r *rand.Rand, name string) []limiter.Policy {
	p := drawPolicy(r)
	switch {
	case s.Attempts:
		return []limiter.Policy{drawAttempts(r, name)}
	case s.Slots:
		return []limiter.Policy{{Name: name, Algorithm: limiter.Concurrency, Limit: float64(1 + r.IntN(3)), Period: period}}
	case s.Balances:
		return []limiter.Policy{{Name: name, Algorithm: limiter.Balance, Overdraft: float64(r.IntN(2) * 4), BlockFor: p.BlockFor}}
	case s.Bounded:
		for p.Algorithm == limiter.LeakyBucketQueue || p.Calendar != "" || p.BlockFor != 0 {
			p = drawPolicy(r)
		}
		p.Name, p.MaxKeys = name, maxKeys
		return []limiter.Policy{p}
	case s.Several && r.IntN(4) == 0:
		return []limiter.Policy{{Name: name, Algorithm: limiter.Balance, Overdraft: 8, BlockFor: p.BlockFor}}
	case s.UpTo, s.Several, s.Sums:
		for p.Algorithm == limiter.LeakyBucketQueue {
			p = drawPolicy(r)
		}
		if s.Sums {
			p.UsageBy = limiter.Hour
		}
		if s.UpTo {
			p.Limit, p.Burst = 4*p.Limit, 4*p.Burst
		}
	case s.Expires: // what expires still counts
		p.Period *= 4
	}
	if p.Name = name; r.IntN(3) == 0 {
		return []limiter.Policy{p, otherPlan(r, p)}
	}
	return []limiter.Policy{p}
}

// maxKeys is the MaxKeys of a policy that has a bound.
const maxKeys = 2

// key returns the name of a key. Under a bound all keys have one policy.
func (s *scene) key(n int) string {
	if s.Bounded {
		return fmt.Sprint(s.name, "-", n)
	}
	return s.name
}

// sharesStatements reports whether two clients of a scene are in one process. Then a statement
// may ask for the sum of their requests, and be denied, before each is asked for again.
func (s *scene) sharesStatements() bool { return s.number%2 == 1 && !s.Several }

// drawPolicy draws an algorithm in one of its forms.
func drawPolicy(r *rand.Rand) limiter.Policy {
	all := limiter.Algorithms()
	p := limiter.Policy{Algorithm: all[r.IntN(len(all))], Limit: float64(4 + r.IntN(5)), Period: period}
	switch p.Algorithm {
	case limiter.FixedWindow:
		switch r.IntN(3) {
		case 0:
			p.Aligned = true
		case 1:
			p.Calendar, p.Period = limiter.Hour, 0
		}
	case limiter.LeakyBucket:
		if r.IntN(2) == 0 {
			p.Tick = period / 4
		}
		fallthrough
	case limiter.LeakyBucketQueue, limiter.TokenBucket, limiter.GCRA:
		if r.IntN(2) == 0 { // a delay is a quotient: it is exact if the limit is a power of two
			p.Burst = float64(4 + r.IntN(8))
		}
		if p.Algorithm == limiter.LeakyBucketQueue {
			p.Limit = 4
		}
	}
	if r.IntN(4) == 0 {
		p.BlockFor = period / 4
	}
	return p
}

// drawAttempts draws a policy of attempts.
func drawAttempts(r *rand.Rand, name string) limiter.Policy {
	return limiter.Policy{
		Name: name, Algorithm: limiter.Attempts, Limit: float64(1 + r.IntN(3)), Burst: float64(1 + r.IntN(3)), Period: 2 * period,
		BlockFor: period / 4, BlockGrowth: []float64{1, 1.5, 2}[r.IntN(3)], BlockMax: 2 * period,
	}
}

// otherPlan returns a policy of the same name with other numbers.
func otherPlan(r *rand.Rand, p limiter.Policy) limiter.Policy {
	q := p
	q.Limit = p.Limit * 2
	if p.Burst != 0 {
		q.Burst = p.Burst + 3
	}
	if p.Period != 0 && p.Algorithm != limiter.SlidingWindowLog && r.IntN(2) == 0 {
		q.Period = 2 * p.Period
	}
	return q
}

// start is the first reading of the clock: an hour ends soon after it.
func start() int64 { return time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC).UnixMicro() - 3*unit }

// moveClock sometimes moves the clock: to an edge of a window, near it, to the expiry of a
// reservation or a little before if that comes soon, on by a part of a period, far, or back.
func moveClock(r *rand.Rand, g *ground, expiry int64) {
	if r.IntN(4) != 0 {
		return
	}
	by := r.IntN(12)
	part := int64(1+r.IntN(4)) * unit / 16
	g.move(func(now int64) int64 {
		edge := now - now%unit + unit
		switch by {
		case 0:
			return now + 1
		case 1:
			return edge
		case 2:
			return edge - 1
		case 3:
			return now - unit/32
		case 4:
			return now + 2*unit
		case 5:
			return now + unit/2
		case 6, 7, 8, 9:
			if now < expiry && expiry <= now+2*unit {
				return expiry - [...]int64{0, 1, unit / 8, unit / 4}[by-6]
			}
		}
		return now + part
	})
}
