package search

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// equality judges each answer by a model that gets the same calls.
type equality struct {
	subject *side
	history *History
	model   *side
	done    []moment // the calls that the model has got
	latest  int64    // reading of the clock
	levels  []int    // how many those were before the open transactions and savepoints
}

// moment is a step and the clock's reading.
type moment struct {
	step *Step
	at   int64
}

func newEquality(subject *side, h *History) *equality {
	e := &equality{subject: subject, history: h}
	e.model = e.newModel()
	return e
}

func (e *equality) newModel() *side {
	if e.subject.Model != nil {
		return newSide(e.subject.Model(), e.history)
	}
	s := Memory(e.subject.Clock)
	s.Prefix = e.subject.Prefix
	return newSide(s, e.history)
}

// differs reports whether a call in a transaction is not what it is outside of one: a Check
// gives no expired reservation back, and a denied AllowAll or an AllowAny brings rows up to date. So
// does an AllowAny that counts once, which is always in one.
func (e *equality) differs(s *Step) bool {
	if s.Idempotency != "" && (s.Op == "any" || s.Op == "split") && !e.history.Plain {
		return true
	}
	return len(e.subject.open) > 0 && (s.Op == "check" || (s.Op == "all" || s.Op == "reserve_all" || s.Op == "any" || s.Op == "split") && !e.history.Plain)
}

// judge makes the call of the model and compares the answers.
func (e *equality) judge(s *Step, at int64, got verbs.Answer) error {
	switch s.Op {
	case "begin":
		e.levels = append(e.levels, len(e.done))
		return got.Err
	case "commit", "rollback":
		n := len(e.levels) - 1
		if s.Op == "rollback" {
			e.rollBack(e.levels[n])
			e.subject.Clock.Set(at)
		}
		e.levels = e.levels[:n]
		return got.Err
	case "sweep":
		return got.Err
	}
	if e.subject.Skip != nil {
		if skip, err := e.subject.Skip(s, got); err != nil {
			return err
		} else if skip {
			if got.Err == nil {
				e.model.given[s.Number] = got.PerRequest // a denial, that gives nothing back
			}
			return e.retry(s, at, got)
		}
	}
	e.done, e.latest = append(e.done, moment{s, at}), max(e.latest, at)
	want := e.model.do(s)
	if err := e.compare(s, got, want); err != nil {
		return fmt.Errorf("%w\ngot:  %+v\nwant: %+v", err, got, want)
	}
	return e.retry(s, at, want)
}

// rollBack rebuilds the model from the first of its calls; calls is their number.
func (e *equality) rollBack(calls int) {
	given, ids, sets := e.model.given, e.model.ids, e.model.sets
	e.done, e.model = e.done[:calls], e.newModel()
	e.model.given, e.model.ids, e.model.sets = given, ids, sets // a later step may name a request that was rolled back
	for _, m := range e.done {
		e.subject.Clock.Set(m.at)
		e.model.do(m.step)
	}
}

func (e *equality) compare(s *Step, got, want verbs.Answer) error {
	if a, b := classOf(got.Err), classOf(want.Err); a != b || (got.Err == nil) != (want.Err == nil) || got.Err != nil && a == nil {
		return fmt.Errorf("the error is %v, want %v", got.Err, want.Err)
	}
	if got.Err != nil {
		return nil
	}
	if len(got.PerRequest) != len(want.PerRequest) || got.Allowed != want.Allowed || got.DeniedBy != want.DeniedBy || got.Fence != want.Fence || got.After != want.After || !got.Expires.Equal(want.Expires) {
		return fmt.Errorf("other answers than the model's")
	}
	for i := range want.PerRequest {
		if !e.alike(s, got.PerRequest[i], want.PerRequest[i]) {
			return fmt.Errorf("answer %d is another than the model's", i)
		}
	}
	if s.Op != "usage" {
		return nil
	}
	u, v := got.Usage, want.Usage
	switch {
	case e.subject.Sweep != nil && u.Reservations < v.Reservations: // it has given back what has expired
		if !noFuller(u.Result, v.Result) {
			return fmt.Errorf("the usage is more than the model's, with fewer reservations: %+v, want %+v", u, v)
		}
		return nil
	case e.subject.Sweep != nil: // it may have forgotten which units were reserved
		u.Reservations, u.Reserved, u.Spent = v.Reservations, v.Reserved, v.Spent
	}
	if !e.alike(s, u.Result, v.Result) || u.Reservations != v.Reservations || !near(u.Spent, v.Spent) || !near(u.Reserved, v.Reserved) || !u.WindowEndsAt.Equal(v.WindowEndsAt) ||
		u.Granted != v.Granted || u.Expired != v.Expired || u.Debt != v.Debt || !slices.EqualFunc(u.Lots, v.Lots, sameLot) {
		return fmt.Errorf("the usage is another than the model's: %+v, want %+v", u, v)
	}
	return nil
}

func (e *equality) alike(s *Step, got, want limiter.Result) bool {
	if e.subject.Alike != nil {
		return e.subject.Alike(s, got, want)
	}
	return sourceless(got) == sourceless(want)
}

// noFuller reports whether got has no more units in use than want, and leaves no fewer.
func noFuller(got, want limiter.Result) bool {
	alike := near(got.Level, want.Level)
	return (got.Level <= want.Level || alike) &&
		(got.Remaining >= want.Remaining || near(got.Remaining, want.Remaining) || alike && edge(got, want))
}

// sourceless hides which of memory and the database decided.
func sourceless(r limiter.Result) limiter.Result {
	if r.Source == limiter.SourceDatabase {
		r.Source = limiter.SourceMemory
	}
	return r
}

// Rounded reports whether two results are equal but for the rounding of sums. For example
// requests that share a statement round their sum once, and single ones each time.
func Rounded(_ *Step, got, want limiter.Result) bool {
	soon := func(a, b time.Duration) bool { return a == b || (a-b).Abs() <= time.Microsecond }
	if got.Level != want.Level && got.Policy.Algorithm == limiter.SlidingWindowLog { // an entry of next to no units may be left
		got.ResetAfter = want.ResetAfter
	}
	if !near(got.Level, want.Level) || !near(got.Remaining, want.Remaining) && !edge(got, want) || !near(got.Granted, want.Granted) ||
		!soon(got.RetryAfter, want.RetryAfter) || !soon(got.ResetAfter, want.ResetAfter) || !soon(got.Delay, want.Delay) {
		return false
	}
	return apart(got) == apart(want)
}

// apart returns what Rounded compares exactly.
func apart(r limiter.Result) limiter.Result {
	return limiter.Result{Allowed: r.Allowed, Limit: r.Limit, Burst: r.Burst, Full: r.Full, Reason: r.Reason, Replayed: r.Replayed,
		Expired: r.Expired, Shadowed: r.Shadowed, Policy: r.Policy, Source: sourceless(r).Source, At: r.At}
}

// edge reports whether the rounding of a whole level can make Remaining, which is rounded
// down, a unit less.
func edge(got, want limiter.Result) bool {
	return math.Abs(got.Remaining-want.Remaining) <= 1 && near(got.Level, math.Round(got.Level))
}

func sameLot(a, b limiter.Lot) bool {
	same := a.Expires.Equal(b.Expires)
	a.Expires, b.Expires = time.Time{}, time.Time{}
	return same && a == b
}

func near(a, b float64) bool { return a == b || math.Abs(a-b) <= 1e-9*max(1, math.Abs(a)) }

// retry expects of a denial that a request at its RetryAfter is allowed, and one a
// microsecond earlier, of a bucket two, is not, if the key has no reservations that come back meanwhile.
func (e *equality) retry(s *Step, at int64, denied verbs.Answer) error {
	switch s.Op {
	case "allow", "once", "upto", "check", "acquire":
	case "attempt":
		if s.From != "" { // Check has none
			return nil
		}
	default:
		return nil
	}
	if denied.Err != nil || e.subject.Model != nil {
		return nil
	}
	r, p := denied.PerRequest[0], &e.history.Policies[s.Policy]
	if p.Algorithm == limiter.Balance { // when a block ends, lots may have expired
		return nil
	}
	if p.Algorithm == limiter.FixedWindow && at < e.latest { // it waits for no window that began in the time to come
		return nil
	}
	if r.Allowed || r.RetryAfter == limiter.Never || r.Policy.Shadow || s.Floor != 0 { // Check has no floor
		return nil
	}
	if e.history.plans(p.Name) > 1 { // another plan's rate or windows may have counted
		return nil
	}
	in, d := s.request(e.model.policies), e.model.Ways[0]
	if u, err := d.Usage(bg, in.Policy, in.Key); err != nil || u.Reservations > 0 && around[p.Algorithm] == "" {
		return err
	}
	if s.Op == "upto" { // RetryAfter is for the first unit or step
		step := 1e-6 * r.Burst
		if in.Cost == math.Trunc(in.Cost) {
			step = 1
		}
		in.Cost = min(in.Cost, max(1, step))
	}
	defer e.subject.Clock.Set(at)
	then := r.At.Add(r.RetryAfter).Sub(e.subject.Clock.Now()).Microseconds() + at
	exact := int64(1)
	if bucket(p) && around[p.Algorithm] == "" { // what leaks is rounded
		exact = 2
	}
	for _, early := range []int64{0, min(exact, r.RetryAfter.Microseconds())} {
		e.subject.Clock.Set(then - early)
		if again, err := d.Check(bg, in.Policy, in.Key, in.Cost); err != nil || again.Allowed == (early > 0) {
			return fmt.Errorf("%v units were denied: %+v\nrequested again %d µs before RetryAfter: %+v, %v", in.Cost, r, early, again, err)
		}
	}
	return nil
}

// end compares the usage of all keys.
func (e *equality) end() error {
	for i := range e.history.Policies {
		for k := range e.history.Keys {
			if e.history.ByKey && k%len(e.history.Policies) != i {
				continue
			}
			s := &Step{Op: "usage", Ask: Ask{Policy: i, Key: k}, Way: len(e.subject.Ways) - 1}
			if err := e.compare(s, e.subject.do(s), e.model.do(s)); err != nil {
				return fmt.Errorf("policy %d, key %s in the end: %w", i, key(k), err)
			}
		}
	}
	if e.subject.Rows == nil || e.model.Rows == nil {
		return nil
	}
	got, err := e.subject.Rows()
	if err != nil {
		return err
	}
	if want, err := e.model.Rows(); err != nil || got != want {
		return fmt.Errorf("rows (%v):\n%s\nwant:\n%s", err, got, want)
	}
	return nil
}
