package search

import (
	"fmt"
	"strings"
	"time"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// History is the policies of a search and its steps.
type History struct {
	Policies     []limiter.Policy // some may be plans of one name
	Start        int64            // the clock's first reading
	Keys         int
	MaxKeys      int  // 0: no bound that is reached
	Plain, ByKey bool // of Draw
	Steps        []Step
}

// Step is a move of the clock and one call.
type Step struct {
	Number int
	Op     string
	Moves  int64 // microseconds
	Retry  bool  // instead: to the time that the last denial named, and Moves, if it is ahead
	Way    int   // modulo the number of the subject's
	Ask
	Asks []Ask // of all, any, split and batch
	// Of is the number of the earlier step whose answer is given back, settled or
	// cancelled.
	Of          int
	Second      bool // of a step with several answers: another than the first
	Idempotency string
	For         time.Duration // a reservation's, a block's, an attempt's or a slot's
	From        string        // an attempt's
	Ends        int64         // of a grant: how long after the step its lot ends; 0: never
	Priority    int           // of a grant
	Estimate    bool
	Override    *policies.Override
}

// Ask is a request by the number of its policy and of its key.
type Ask struct {
	Policy, Key int
	Units       float64
	Floor       float64 // of allow, once, all, any, split, batch and reserve
	UpTo        bool    // of batch: by AllowUpTo
}

// request returns what is asked for under the policies with their full names.
func (a *Ask) request(policies []limiter.Policy) limiter.Request {
	return limiter.Request{Policy: policies[a.Policy], Key: key(a.Key), Cost: a.Units, Floor: a.Floor}
}

// key returns the name of a key.
func key(n int) string { return string(rune('a' + n)) }

// which returns the index of the answer that s gives back, below answers.
func (s *Step) which(answers int) int {
	if s.Second {
		return answers - 1
	}
	return 0
}

// plans returns the number of policies of a name.
func (h *History) plans(name string) (n int) {
	for i := range h.Policies {
		if h.Policies[i].Name == name {
			n++
		}
	}
	return n
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
	at := h.Start
	for i := range h.Steps {
		s := &h.Steps[i]
		at += s.Moves
		fmt.Fprintf(&b, "%3d at %d µs, way %d: %s", s.Number, at, s.Way, s.Op)
		if s.Retry {
			fmt.Fprintf(&b, ", at the last RetryAfter %+d", s.Moves)
		}
		switch s.Op {
		case "begin", "commit", "rollback", "sweep":
		case "all", "any", "split", "batch", "reserve_all":
			fmt.Fprintf(&b, " %+v", s.Asks)
		default:
			fmt.Fprintf(&b, ", policy %d, key %s, %v units, floor %v", s.Policy, key(s.Key), s.Units, s.Floor)
		}
		switch s.Op {
		case "undo", "settle", "cancel", "settle_all", "cancel_all", "succeeded", "failed", "renew", "release":
			fmt.Fprintf(&b, ", of step %d (second: %v)", s.Of, s.Second)
		case "reserve", "reserve_up_to", "reserve_all", "block", "attempt", "acquire":
			fmt.Fprintf(&b, ", for %v from %q, an estimate: %v", s.For, s.From, s.Estimate)
		case "override":
			fmt.Fprintf(&b, ", %+v", s.Override)
		case "grant":
			fmt.Fprintf(&b, ", ends after %d µs, priority %d", s.Ends, s.Priority)
		}
		if s.Idempotency != "" {
			fmt.Fprintf(&b, ", idempotency key %s", s.Idempotency)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
