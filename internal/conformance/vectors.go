// Package conformance checks that every kind of Limiter makes the same decisions: it runs
// the step tables of testdata/vectors in memory and in PostgreSQL.
package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// A Case is a policy and its decisions, step by step.
type Case struct {
	Name   string         `json:"name"`
	Policy limiter.Policy `json:"policy"`
	Steps  []Step         `json:"steps"`
}

// A Step makes a request, or Times of them, at a time in microseconds. Want has the
// expected fields of the Result by their JSON names, as far as the case's source defines
// them. Floats are compared within 1e-6 unless level_tolerance is set, and null is Never.
// For block, Cost is seconds. An undo gives back the answer to the step of number Of, and a settle
// ends its reservation.
type Step struct {
	At       int64          `json:"at"`
	Op       string         `json:"op"`
	Key      string         `json:"key"`
	Cost     float64        `json:"cost"`
	Floor    float64        `json:"floor"` // of allow and allow_all
	Times    int            `json:"times"`
	Of       int            `json:"of"`
	Ends     int64          `json:"ends"`     // of a grant: when its lot expires; 0: never
	Priority int            `json:"priority"` // likewise
	Once     string         `json:"once"`     // likewise: its IdempotencyKey
	Want     map[string]any `json:"want"`
}

// Epoch is time 0 of the steps: a whole multiple of all their periods.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Clock is a settable clock for Config.Now, safe for concurrent use.
type Clock struct{ us atomic.Int64 }

// Now returns the time, for Config.Now.
func (c *Clock) Now() time.Time { return Epoch.Add(time.Duration(c.us.Load()) * time.Microsecond) }

// Set sets the clock to us microseconds after Epoch.
func (c *Clock) Set(us int64) { c.us.Store(us) }

// Run runs every vector of dir, each on its own Limiter with that clock.
func Run(t *testing.T, dir string, newLimiter func(t *testing.T, clock *Clock) *limiter.Limiter) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors in %s (%v)", dir, err)
	}
	n := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var cases []Case
		if err := json.Unmarshal(data, &cases); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, c := range cases {
			n++ // a distinct name: one database can run them all
			c.Policy.Name = fmt.Sprintf("v%d", n)
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				clock := new(Clock)
				c.run(t, newLimiter(t, clock), clock)
			})
		}
	}
}

func (c Case) run(t *testing.T, l *limiter.Limiter, clock *Clock) {
	answers, ids := make([]limiter.Result, len(c.Steps)), make([]string, len(c.Steps))
	for i, s := range c.Steps {
		for range max(1, s.Times) {
			clock.Set(s.At)
			r, err := s.do(context.Background(), l, c.Policy, answers, ids, i)
			answers[i] = r
			if err != nil {
				t.Fatalf("step %d (%s %v at %d µs): %v", i, s.Op, s.Cost, s.At, err)
			}
			for _, diff := range differences(r, s.Want) {
				t.Errorf("step %d (%s %v at %d µs): %s", i, s.Op, s.Cost, s.At, diff)
			}
		}
	}
}

// do calls the method that the step names.
func (s *Step) do(ctx context.Context, l verbs.Limiter, p limiter.Policy, answers []limiter.Result, ids []string, i int) (limiter.Result, error) {
	key, cost := s.Key, s.Cost
	switch s.Op {
	case "allow":
		return l.Do(ctx, limiter.Request{Policy: p, Key: key, Cost: cost, Floor: s.Floor})
	case "allow_all": // with another key
		all, err := l.AllowAll(ctx, limiter.Request{Policy: p, Key: key, Cost: cost, Floor: s.Floor}, p.Request(key+" too", cost))
		if err != nil {
			return limiter.Result{}, err
		}
		return all.PerRequest[0], nil
	case "allow_up_to":
		return l.AllowUpTo(ctx, p, key, cost)
	case "reserve", "reserve_up_to": // for an hour
		call := verbs.Call{Op: s.Op, Request: p.Request(key, cost), For: time.Hour}
		a := call.Make(ctx, l)
		ids[i] = a.ID
		return a.PerRequest[0], a.Err
	case "settle":
		return l.Settle(ctx, ids[s.Of], cost)
	case "check":
		return l.Check(ctx, p, key, cost)
	case "charge":
		return l.Charge(ctx, p, key, cost)
	case "grant":
		o := limiter.GrantOptions{Priority: s.Priority, IdempotencyKey: s.Once}
		if s.Ends != 0 {
			o.Expires = Epoch.Add(time.Duration(s.Ends) * time.Microsecond)
		}
		return l.Grant(ctx, p, key, cost, o)
	case "refund":
		return l.Refund(ctx, p, key, cost)
	case "undo":
		return l.Undo(ctx, p, key, answers[s.Of])
	case "reset":
		return limiter.Result{}, l.Reset(ctx, p, key)
	case "block":
		return limiter.Result{}, l.Block(ctx, p, key, time.Duration(math.Round(cost*1e6))*time.Microsecond)
	case "unblock":
		return limiter.Result{}, l.Unblock(ctx, p, key)
	}
	return limiter.Result{}, fmt.Errorf("unknown op %q", s.Op)
}

func differences(r limiter.Result, want map[string]any) (out []string) {
	data, err := json.Marshal(r)
	if err != nil {
		return []string{err.Error()}
	}
	got := map[string]any{}
	if err := json.Unmarshal(data, &got); err != nil {
		return []string{err.Error()}
	}
	tolerance := 1e-6
	if v, ok := want["level_tolerance"].(float64); ok {
		tolerance = v
	}
	for field, w := range want {
		if field == "level_tolerance" {
			continue
		}
		g, ok := got[field]
		a, isNumber := g.(float64)
		b, wantNumber := w.(float64)
		allowed := 1e-6
		if field == "level" {
			allowed = tolerance
		}
		// A difference of one microsecond counts, so times are compared to half of one.
		if len(field) > 2 && field[len(field)-2:] == "_s" {
			allowed = 0.5e-6
		}
		switch {
		case !ok && w == nil, ok && g == w:
		case isNumber && wantNumber && math.Abs(a-b) <= allowed:
		default:
			out = append(out, fmt.Sprintf("%s is %v, want %v (%s)", field, g, w, data))
		}
	}
	return out
}
