package search

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// Draw says which random histories are drawn.
type Draw struct {
	Base       limiter.Policy
	Steps      int      // 0: 40
	Names      int      // the most names of policies, of which those after the second have any algorithm; 0: 2
	Keys       int      // 0: 2
	Operations string   // to draw from; a word may stand there again; empty: Usual
	Coarse     bool     // no limits and units that round
	OnePlan    bool     // of each name
	ByKey      bool     // a key has always the same plan
	Plain      bool     // one plan of each name, in units that sum up exactly, and a clock that is never set back
	Forward    bool     // the clock is never set back
	Retries    bool     // the clock often moves to a RetryAfter
	MaxKeys    bool     // histories may have it
	Equal      bool     // each answer is compared with the model's
	Leases     bool     // of policies that may have them
	Long       bool     // small units and short moves, so that logs grow long
	Ledgers    bool     // of most policies of balances
	Shadows    bool     // of policies, and all kinds of overrides; admissions are then not compared with the bound
	Zones      []string // of a Base with a calendar, whose plans then change, and whose moments are about clock changes; likewise
}

// start is the clock's usual first reading. The Epoch is a whole multiple of all periods.
const start = int64(3_600_000_000)

// drawing is a history in the making.
type drawing struct {
	*rand.Rand
	*Draw
	*History
	all          []string // the operations
	forward      bool
	at           int64
	answers      []int
	reservations []int
	blocked      *Ask            // of the last block
	sets         map[string]Step // the last of each operation under an idempotency key
	sweep        int             // how many of sweep's operations are left
}

// sweep is the operations of a sweep an hour later, when the janitor looks at a row again
// that is in use.
var sweep = []string{"allow", "sweep", "allow"}

// around are the first and the last operation of sweep, for algorithms without allow.
var around = map[limiter.Algorithm]string{limiter.Attempts: "attempt", limiter.Concurrency: "acquire"}

// draw makes a random history.
func (d *Draw) draw(random *rand.Rand) *History {
	g := &drawing{Rand: random, Draw: d, History: &History{Start: start, Keys: cmp.Or(d.Keys, 2), Plain: d.Plain, ByKey: d.ByKey}, sets: map[string]Step{}}
	g.drawPolicies()
	if len(d.Zones) > 0 {
		g.Start = g.nearClockChange()
	}
	g.at = g.Start
	g.forward = g.IntN(3) > 0 || d.Forward || d.Plain
	if d.MaxKeys && g.forward && g.IntN(4) == 0 {
		g.History.MaxKeys = 1 + g.IntN(g.History.Keys) // rows are forgotten once they are empty
	}
	g.all = strings.Fields(cmp.Or(d.Operations, Usual))
	for n := range cmp.Or(d.Steps, 40) {
		op := g.all[g.IntN(len(g.all))]
		if n > 0 && g.History.Steps[n-1].Op == "block" && g.IntN(2) == 0 {
			op = "block" // while the first is in force
		}
		if op == "sweep" && n > 0 && g.IntN(2) == 0 {
			g.sweep = len(sweep)
		}
		if g.sweep > 0 {
			if op = sweep[len(sweep)-g.sweep]; op == "allow" {
				op = cmp.Or(around[d.Base.Algorithm], op)
			}
		}
		g.History.Steps = append(g.History.Steps, g.step(n, op))
		g.sweep = max(0, g.sweep-1)
	}
	return g.History
}

func (g *drawing) step(n int, op string) Step {
	s := Step{Number: n, Op: op, Way: g.IntN(6), Ask: g.ask()}
	p := &g.Policies[s.Policy]
	s.Moves = g.move(p)
	if s.Retry = g.Retries && g.IntN(4) == 0; s.Retry {
		s.Moves = -g.Int64N(2)
	}
	if g.sweep > 0 {
		s.Ask, s.Moves = g.History.Steps[n-1].Ask, 0
		if g.sweep == len(sweep) {
			s.Moves = time.Hour.Microseconds()
		}
	}
	g.at += s.Moves
	s.Second = g.IntN(2) == 0
	switch s.Op {
	case "undo":
		if len(g.answers) == 0 {
			s.Op = "allow"
			break
		}
		s.Of = recent(g.Rand, g.answers)
		if of := &g.History.Steps[s.Of]; g.IntN(5) > 0 {
			s.Policy, s.Key = of.Policy, of.Key
			if len(of.Asks) > 0 {
				s.Ask = of.Asks[s.which(len(of.Asks))]
			}
		}
	case "reserve_all", "settle_all", "cancel_all":
		g.reserveAll(&s)
	case "settle", "cancel":
		if len(g.reservations) == 0 {
			s.Op = "reserve"
			break
		}
		s.Of = recent(g.Rand, g.reservations)
		if n := g.History.Steps[s.Of].Units; g.IntN(3) > 0 {
			s.Units = []float64{0, n / 2, n / 4, n}[g.IntN(4)]
		}
	case "succeeded", "failed", "renew", "release":
		if len(g.reservations) == 0 {
			s.Op = around[g.Base.Algorithm]
			break
		}
		if s.Of = recent(g.Rand, g.reservations); s.Op == "renew" {
			s.For = g.lasting(p)
		}
	case "grant":
		s.Ends = []int64{0, 0, 1, 1 + g.Int64N(3*period(p)), period(p)}[g.IntN(5)]
		s.Priority, s.From = []int{0, 0, 0, -1, 5}[g.IntN(5)], []string{"", "gift", "\"trial\", ü"}[g.IntN(3)]
		if s.Units *= float64(1 + g.IntN(3)); g.IntN(4) == 0 {
			s.Idempotency = []string{"x", "z"}[g.IntN(2)]
		}
	case "once":
		s.Idempotency = []string{"x", "y"}[g.IntN(2)]
	case "block", "unblock": // mostly a key that may be blocked
		if g.blocked != nil && g.IntN(5) > 0 {
			s.Ask = *g.blocked
		}
		g.blocked = &s.Ask
		s.For = time.Duration(1+g.Int64N(period(p))) * time.Microsecond
	case "all":
		draw := g.ask
		if g.IntN(2) == 0 {
			draw = g.share
		}
		for range 1 + g.IntN(max(2, 2*g.Names)) {
			s.Asks = append(s.Asks, draw())
		}
		g.level(s.Asks)
		g.once(&s)
	case "any", "split":
		g.pools(&s)
		g.once(&s)
	case "batch":
		for range 1 + g.IntN(12) {
			s.Asks = append(s.Asks, g.share())
		}
	case "override":
		if g.IntN(2) == 0 {
			s.Override = g.override(p)
		}
	case "check":
		if g.IntN(3) == 0 {
			s.Units = 0
		}
	}
	if s.Op == "reserve" || s.Op == "reserve_up_to" {
		s.For = []time.Duration{time.Second, time.Duration(period(p)/2) * time.Microsecond, time.Hour}[g.IntN(3)]
		s.For = max(s.For, time.Second)
		// A request under the key of a reservation that has expired may be denied before that is
		// given back. Then the time since has leaked at the rate of its plan, not of the model's.
		if slices.Contains(g.all, "once") && g.IntN(4) == 0 && !(g.Equal && bucket(p) && g.History.plans(p.Name) > 1) {
			s.Idempotency = []string{"x", "z"}[g.IntN(2)]
		}
		if s.Estimate = g.IntN(4) > 0; s.Estimate && s.Moves == 0 && !s.Retry { // sums of estimates of one moment round in any order
			s.Moves, g.at = 1, g.at+1
		}
		g.reservations = append(g.reservations, n)
	}
	if s.Op == "attempt" {
		s.From = []string{"", "home", "home", "office", "afar"}[g.IntN(5)]
		s.For = g.lasting(p)
		g.reservations = append(g.reservations, n)
	}
	if s.Op == "acquire" {
		s.For, s.Floor = g.lasting(p), 0
		g.reservations = append(g.reservations, n)
	}
	switch s.Op {
	case "allow", "upto", "once", "all", "any", "split", "check", "charge", "refund", "undo", "reserve", "reserve_up_to", "settle", "batch":
		g.answers = append(g.answers, n)
	}
	return s
}

// lasting returns how long an attempt or a slot lasts.
func (g *drawing) lasting(p *limiter.Policy) time.Duration {
	return []time.Duration{0, time.Second, time.Duration(period(p)) * time.Microsecond}[g.IntN(3)]
}

// recent returns one of the numbers, mostly of the last ones.
func recent(random *rand.Rand, numbers []int) int {
	n := len(numbers)
	if random.IntN(3) > 0 {
		return numbers[n-1-random.IntN(min(n, 4))]
	}
	return numbers[random.IntN(n)]
}

// nearClockChange returns a moment of the years 2026 to 2028 near a clock change of one of
// the zones, or the start of a month.
func (g *drawing) nearClockChange() int64 {
	zone, err := time.LoadLocation(g.Zones[g.IntN(len(g.Zones))])
	if err != nil {
		panic(err)
	}
	at := conformance.Epoch.AddDate(0, 0, 60+g.IntN(840)).In(zone)
	if _, change := at.ZoneBounds(); !change.IsZero() {
		at = change
	} else {
		at = time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, zone)
	}
	return at.Sub(conformance.Epoch).Microseconds() - g.Int64N(3*time.Hour.Microseconds())
}

// ask draws a request.
func (g *drawing) ask() (a Ask) {
	a.Policy, a.Key = g.IntN(len(g.Policies)), g.IntN(g.History.Keys)
	if g.Draw.ByKey {
		a.Policy = a.Key % len(g.Policies)
	}
	a.Units = g.units(&g.Policies[a.Policy])
	if !g.Long && g.IntN(4) == 0 && g.Base.Algorithm != limiter.Balance && (!g.Leases || g.IntN(4) == 0) { // a floor uses no lease, and keeps logs short
		a.Floor = []float64{0.25, 0.25, 0.5, 0.3}[g.IntN(4)]
	}
	return a
}

// share draws a request of which some fit, mostly the same one, so that requests of a batch
// merge. With BlockFor, or if no unit fits, AllowUpTo shares no statement.
func (g *drawing) share() Ask {
	a := g.ask()
	p := &g.Policies[a.Policy]
	if p.Algorithm == limiter.Balance {
		a.UpTo = p.BlockFor == 0 && g.IntN(4) == 0 && a.Units == math.Trunc(a.Units)
		return a
	}
	a.Units = burstOf(p) * []float64{0.125, 0.125, 0.125, 0.25, 0.5}[g.IntN(5)]
	if a.UpTo = p.BlockFor == 0 && burstOf(p) >= 1 && g.IntN(4) == 0; a.UpTo {
		a.Units = math.Ceil(a.Units)
	}
	return a
}

// move returns how far the clock moves: not at all, a little, about to an edge, far, or a
// bit back.
func (g *drawing) move(p *limiter.Policy) int64 {
	length := period(p)
	if g.Long && g.IntN(8) > 0 {
		return g.Int64N(1 + length/40)
	}
	if half := (30 * time.Minute).Microseconds(); len(g.Zones) > 0 { // to and over edges of half and whole hours
		length = min(length, 31*24*time.Hour.Microseconds())
		switch g.IntN(3) {
		case 0:
			return half - g.at%half - g.Int64N(2)
		case 1:
			length = time.Hour.Microseconds() * []int64{1, 1, 1, 24, 7 * 24, 31 * 24}[g.IntN(6)]
		}
	}
	if p.Lease > 0 && g.IntN(6) > 0 { // mostly within the life of a lease
		length = max(1, min(1e7, int64(p.Lease*float64(length)))/2)
	}
	switch g.IntN(12) {
	case 0, 1, 2, 3:
		return 0
	case 4:
		return 1
	case 5:
		return length
	case 6:
		return length - 1
	case 7:
		return g.Int64N(3 * length)
	case 8:
		if !g.forward {
			return -g.Int64N(length / 2)
		}
		return length / 2
	case 9:
		return max(p.Tick.Microseconds(), length/10)
	}
	return g.Int64N(length / 4)
}

func (g *drawing) units(p *limiter.Policy) float64 {
	switch p.Algorithm {
	case limiter.Attempts:
		return 1
	case limiter.Concurrency:
		return float64([]int{1, 1, 1, 1, 2, 3, 5}[g.IntN(7)])
	}
	if p.Algorithm == limiter.Balance {
		return []float64{1, 2, 3, 5, 8, 13, 0.125, 1 + float64(g.IntN(40))/8}[g.IntN(8)]
	}
	burst := burstOf(p)
	if g.Draw.Plain {
		return burst * []float64{0.125, 0.125, 0.125, 0.25, 0.5}[g.IntN(5)]
	}
	if g.Long && g.IntN(8) > 0 {
		return max(min(1, burst*1e-9), burst/float64(int(8)<<g.IntN(4)))
	}
	if p.Lease > 0 && g.IntN(3) > 0 { // what a block has
		return float64(1 + g.IntN(int(burst/16)+1))
	}
	if least := min(1, burst*1e-9); !g.Coarse {
		switch g.IntN(8) {
		case 0:
			return max(least, g.Float64()*burst)
		case 1:
			return max(least, g.Float64()*2*burst)
		case 2:
			return burst / 10
		case 3:
			return least
		}
	}
	switch g.IntN(8) {
	case 0, 1:
		return burst
	case 2:
		return burst / 2
	case 3:
		return max(burst/8, float64(g.Int64N(1+int64(burst)*8))/8)
	case 4:
		return burst * 1.5
	}
	return float64(1 + g.IntN(max(1, int(burst/2))))
}
