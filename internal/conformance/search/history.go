package search

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// History is the policies of a search and its steps.
type History struct {
	Policies []limiter.Policy // of at most two names
	MaxKeys  int              // 0: no bound that is reached
	Steps    []Step
}

// Step is a move of the clock and one call.
type Step struct {
	Number int
	Op     string
	Moves  int64 // microseconds
	Policy int
	Key    int
	Units  float64
	// Of is the number of the earlier step whose answer is given back, settled or
	// cancelled.
	Of          int
	Idempotency string
	For         time.Duration // a reservation's or a block's
	Second      bool          // of AllowAll: the second answer; of override: remove it
}

// String returns the history as a list of steps.
func (h *History) String() string {
	var b strings.Builder
	for i := range h.Policies {
		fmt.Fprintf(&b, "policy %d: %+v\n", i, h.Policies[i])
	}
	if h.MaxKeys > 0 {
		fmt.Fprintf(&b, "MaxKeys %d\n", h.MaxKeys)
	}
	at := int64(0)
	for _, s := range h.Steps {
		at += s.Moves
		fmt.Fprintf(&b, "%3d at %d µs: %s, policy %d, key %d, %v units", s.Number, at, s.Op, s.Policy, s.Key, s.Units)
		switch s.Op {
		case "undo", "settle", "cancel":
			fmt.Fprintf(&b, ", of step %d (second: %v)", s.Of, s.Second)
		case "reserve", "block":
			fmt.Fprintf(&b, ", for %v", s.For)
		}
		if s.Idempotency != "" {
			fmt.Fprintf(&b, ", idempotency key %s", s.Idempotency)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// operations are those that are drawn, the usual ones more often.
var operations = weigh(map[string]int{
	"allow": 18, "up to": 8, "once": 5, "all": 6, "check": 2, "usage": 1, "charge": 4,
	"undo": 14, "refund": 4, "reserve": 9, "settle": 6, "cancel": 5,
	"block": 1, "unblock": 1, "reset": 2, "begin": 3, "commit": 3, "roll back": 3, "sweep": 8, "override": 1,
})

func weigh(weights map[string]int) (all []string) {
	for _, op := range []string{"allow", "up to", "once", "all", "check", "usage", "charge", "undo", "refund", "reserve", "settle", "cancel",
		"block", "unblock", "reset", "begin", "commit", "roll back", "sweep", "override"} {
		for range weights[op] {
			all = append(all, op)
		}
	}
	return all
}

// draw makes a random history of a variant.
func draw(random *rand.Rand, base limiter.Policy, steps int, memory bool) *History {
	h := &History{Policies: drawPolicies(random, base), Steps: make([]Step, 0, steps)}
	forward := random.IntN(3) > 0 // the clock is never set back
	if memory && forward && random.IntN(4) == 0 {
		h.MaxKeys = 1 + random.IntN(2) // rows are forgotten once they are empty
	}
	var answers, reservations []int
	for n := range steps {
		s := Step{Number: n, Op: operations[random.IntN(len(operations))]}
		s.Policy, s.Key = random.IntN(len(h.Policies)), min(1, random.IntN(4)/2)
		p := &h.Policies[s.Policy]
		s.Moves = drawMove(random, p, forward)
		s.Units = drawUnits(random, p)
		s.Second = random.IntN(2) == 0
		switch s.Op {
		case "undo":
			if len(answers) == 0 {
				s.Op = "allow"
				break
			}
			s.Of = recent(random, answers)
			if of := h.Steps[s.Of]; random.IntN(5) > 0 {
				s.Policy, s.Key = of.Policy, of.Key
			}
		case "settle", "cancel":
			if len(reservations) == 0 {
				s.Op = "reserve"
				break
			}
			s.Of = recent(random, reservations)
			if n := h.Steps[s.Of].Units; random.IntN(3) > 0 {
				s.Units = []float64{0, n / 2, n / 4, n}[random.IntN(4)]
			}
		case "once":
			s.Idempotency = []string{"x", "y"}[random.IntN(2)]
		case "block":
			s.For = time.Duration(1+random.Int64N(period(p))) * time.Microsecond
		}
		if s.Op == "reserve" {
			s.For = []time.Duration{time.Second, time.Duration(period(p)/2) * time.Microsecond, time.Hour}[random.IntN(3)]
			s.For = max(s.For, time.Second)
			if random.IntN(4) == 0 {
				s.Idempotency = []string{"x", "z"}[random.IntN(2)]
			}
			reservations = append(reservations, n)
		}
		switch s.Op {
		case "allow", "up to", "once", "all", "check", "charge", "refund", "undo", "reserve", "settle":
			answers = append(answers, n)
		}
		h.Steps = append(h.Steps, s)
	}
	return h
}

// recent returns one of the numbers, mostly of the last ones.
func recent(random *rand.Rand, numbers []int) int {
	n := len(numbers)
	if random.IntN(3) > 0 {
		return numbers[n-1-random.IntN(min(n, 4))]
	}
	return numbers[random.IntN(n)]
}

// period returns the length of a policy's windows in microseconds, roughly for a calendar.
func period(p *limiter.Policy) int64 {
	days := map[limiter.Calendar]int64{limiter.Day: 1, limiter.Week: 7, limiter.Month: 31}
	switch p.Calendar {
	case "":
		return p.Period.Microseconds()
	case limiter.Hour:
		return time.Hour.Microseconds()
	}
	return days[p.Calendar] * 24 * time.Hour.Microseconds()
}

// drawPolicies returns plans of the name p, often one, and sometimes one of the name q.
func drawPolicies(random *rand.Rand, base limiter.Policy) (all []limiter.Policy) {
	other := random.IntN(2) == 0 // periods or rates
	for range []int{1, 2, 2, 3}[random.IntN(4)] {
		p := base
		p.Name = "p"
		p.Limit = []float64{10, 10, 4, 40, 2.5}[random.IntN(5)]
		if other && p.Calendar == "" {
			p.Period = []time.Duration{base.Period, base.Period / 5, 6 * base.Period}[random.IntN(3)]
		}
		switch p.Algorithm {
		case limiter.FixedWindow, limiter.SlidingWindowCounter, limiter.SlidingWindowLog:
		default:
			p.Burst = p.Limit * []float64{1, 0.5, 3}[random.IntN(3)]
		}
		if random.IntN(4) == 0 {
			p.BlockFor = time.Duration(1+random.Int64N(period(&p))) * time.Microsecond
		}
		all = append(all, p)
	}
	if random.IntN(4) == 0 {
		q := all[0]
		q.Name = "q"
		all = append(all, q)
	}
	return all
}

// drawMove returns how far the clock moves: not at all, a little, about to an edge, far,
// or a bit back.
func drawMove(random *rand.Rand, p *limiter.Policy, forward bool) int64 {
	length := period(p)
	switch random.IntN(12) {
	case 0, 1, 2, 3:
		return 0
	case 4:
		return 1
	case 5:
		return length
	case 6:
		return length - 1
	case 7:
		return random.Int64N(3 * length)
	case 8:
		if !forward {
			return -random.Int64N(length / 2)
		}
		return length / 2
	case 9:
		return max(p.Tick.Microseconds(), length/10)
	}
	return random.Int64N(length / 4)
}

func drawUnits(random *rand.Rand, p *limiter.Policy) float64 {
	burst := burstOf(p)
	switch random.IntN(8) {
	case 0, 1:
		return burst
	case 2:
		return burst / 2
	case 3:
		return max(burst/8, float64(random.Int64N(1+int64(burst)*8))/8)
	case 4:
		return burst * 1.5
	}
	return float64(1 + random.IntN(max(1, int(burst/2))))
}
