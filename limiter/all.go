package limiter

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// maxAsks is how many asks one AllowAll takes.
const maxAsks = 1000

// Results is the answer to the asks of one AllowAll.
type Results struct {
	// Allowed is true when every ask was granted; else none was.
	Allowed bool
	// Each has the answer to each ask, in the order of the asks. If the whole
	// was denied, Each[i].Allowed tells whether that ask would have fitted, and
	// Granted and Delay are 0. Level, Remaining, RetryAfter and ResetAfter are
	// as they stand after the answer.
	Each []Result
	// Binding is the index of the ask that denied the whole; if several did,
	// that of the longest RetryAfter, and of equals the first. It is -1 if the
	// whole was allowed.
	Binding int
}

// resultsJSON is Results in JSON.
type resultsJSON struct {
	Allowed bool     `json:"allowed"`
	Binding *int     `json:"binding"`
	Each    []Result `json:"each"`
}

// MarshalJSON writes binding as null where it is -1, and each as Result does.
func (r Results) MarshalJSON() ([]byte, error) {
	t := resultsJSON{Allowed: r.Allowed, Each: r.Each}
	if r.Binding >= 0 {
		t.Binding = &r.Binding
	}
	if t.Each == nil {
		t.Each = []Result{}
	}
	return json.Marshal(t)
}

// AllowAll asks for several things at once, of any policies and keys: all are
// granted or none is, and a denial consumes nothing. It takes from 1 to 1,000
// asks; the order among them does not matter but to Results, and two AllowAlls
// never deadlock.
//
// Asks of the same policy and key are decided as one, on the sum of their costs;
// each has its own Result, as if they had come one after the other. The same
// name, algorithm and key under two Policy values that differ is an ErrInvalid.
// Errors name the ask by its index. A sum above the burst is denied at once,
// with RetryAfter Never, and nothing is written.
//
// A denial starts the block, if Policy.BlockFor has one, of those policies
// alone that denied. The whole is Relaxed if all policies are, else Durable; it
// is FailOpen if all policies are, else FailClosed. The rows of all its keys are
// locked until it is answered, for two round trips to the database. It shares no
// statement with others, and is not answered from remembered denials.
// Config.Observe is called for each ask.
func (l *Limiter) AllowAll(ctx context.Context, asks ...Ask) (Results, error) {
	return l.engine.all(ctx, asks, nil)
}

// AllowAll is Limiter.AllowAll in the transaction. A denial consumes nothing and
// leaves the caller's own work as it is: no savepoint is used. The rows of all
// keys are locked until the transaction ends, after a denial too.
func (t *Tx) AllowAll(ctx context.Context, asks ...Ask) (Results, error) {
	return t.engine.all(ctx, asks, nil)
}

// joint is what the asks of one AllowAll are for one policy and key: a decision
// on their sum.
type joint struct {
	q     question // of the sum
	parts []part   // in the order of the asks
	ahead float64  // for a WaitAll: the most that may be in a queue before its last part

	// The answer: the key after the whole was decided; granted is 1 where the
	// sum would have fitted, also if the whole is denied.
	outcome outcome
	// If the whole is denied, the same as outcome.view for each part: what a log
	// returns is about one number of units.
	views []algorithm.View
}

// part is one ask of a joint.
type part struct {
	index int     // among the asks
	upTo  float64 // its cost and that of the parts before it
}

// all decides an AllowAll, or a WaitAll's places.
func (e *engine) all(ctx context.Context, asks []Ask, w *places) (all Results, err error) {
	if e.config.Observe != nil {
		defer func() {
			for i, in := range asks {
				var r Result
				if err == nil {
					r = all.Each[i]
				}
				e.config.Observe(ctx, in, r, err)
			}
		}()
	}
	joints, err := e.joints(asks)
	if err != nil {
		return Results{Binding: -1}, err
	}
	decide := func(ctx context.Context) (o outcome, err error) {
		return e.config.bounded(ctx, func(ctx context.Context) (outcome, error) {
			allowed, err := e.takeAll(ctx, joints)
			if allowed {
				o.granted = 1
			}
			return o, err
		})
	}
	var o outcome
	if w == nil {
		o, err = decide(ctx)
	} else {
		w.wanted(joints, asks)
		o, err = e.onward(ctx, decide, func(outcome) { e.leaveAll(ctx, asks, w) })
	}
	failsClosed := func(in Ask) bool { return in.Policy.OnError != FailOpen }
	switch {
	case err == nil:
		return e.results(asks, joints, o.granted > 0), nil
	case !e.failsOpen(ctx, err) || slices.ContainsFunc(asks, failsClosed):
		return Results{Binding: -1}, err
	}
	all = Results{Allowed: true, Binding: -1, Each: make([]Result, len(asks))}
	for i, in := range asks {
		q := question{units: in.Cost, Rules: algorithm.Rules{Burst: in.Policy.burst()}, now: joints[0].q.now}
		all.Each[i] = e.degrade(ctx, &q, in.Policy, err)
	}
	return all, nil
}

// joints validates the asks and puts those of one policy and key together, in
// the one order in which rows are locked.
func (e *engine) joints(asks []Ask) ([]*joint, error) {
	switch {
	case e.closed.Load():
		return nil, ErrClosed
	case len(asks) == 0:
		return nil, invalid("asks", "none", "ask for one at least")
	case len(asks) > maxAsks:
		return nil, invalid("asks", strconv.Itoa(len(asks)), fmt.Sprintf("must be at most %d", maxAsks))
	}
	joints := make([]*joint, 0, len(asks))
	known := make(map[entryKey]*joint, len(asks))
	for i, in := range asks {
		j := &joint{ahead: math.Inf(1)}
		if err := e.question(verbTake, in, &j.q); err != nil {
			return nil, fmt.Errorf("asks[%d]: %w", i, err)
		}
		if in.IdempotencyKey != "" {
			return nil, fmt.Errorf("%w: asks[%d] has an IdempotencyKey, which is for Do and Reserve", ErrUnsupported, i)
		}
		k := entryKey{j.q.algorithm, j.q.policy, j.q.key}
		if other := known[k]; other == nil {
			known[k] = j
			joints = append(joints, j)
		} else if j = other; j.q.source != in.Policy {
			return nil, fmt.Errorf("%w: asks[%d] and asks[%d] are for the same key under two policies %s that are not equal",
				ErrInvalid, j.parts[0].index, i, quote(in.Policy.Name))
		} else {
			sum := j.q.units + in.Cost
			j.q.units, j.q.cost, j.q.unit = sum, sum, sum
		}
		j.parts = append(j.parts, part{index: i, upTo: j.q.units})
	}
	slices.SortFunc(joints, func(a, b *joint) int {
		return cmp.Or(cmp.Compare(a.q.algorithm.index(), b.q.algorithm.index()),
			strings.Compare(a.q.policy, b.q.policy), strings.Compare(a.q.key, b.q.key))
	})
	now, commit := joints[0].q.now, joints[0].q.commit
	for _, j := range joints {
		if j.q.commit == commitDurable {
			commit = commitDurable
		}
	}
	for _, j := range joints { // one transaction, and one reading of Config.Now
		j.q.now, j.q.commit = now, commit
	}
	return joints, nil
}

func every(joints []*joint, is func(*joint) bool) bool {
	return !slices.ContainsFunc(joints, func(j *joint) bool { return !is(j) })
}

// takeAll asks the store, and once more each time the keys that denied had holds
// that have expired; see engine.reaping.
func (e *engine) takeAll(ctx context.Context, joints []*joint) (allowed bool, err error) {
	for {
		allowed, err = e.takeAllOnce(ctx, joints)
		if err != nil || allowed {
			return allowed, err
		}
		freed := false
		for _, j := range joints {
			if !e.reapable(verbTake, &j.q) || j.outcome.granted != 0 {
				continue
			}
			some, err := e.reap(ctx, &j.q, verbTake, j.outcome)
			if err != nil && e.inTx {
				return false, err
			}
			freed = freed || some && err == nil
		}
		if !freed {
			return false, nil
		}
	}
}

// takeAllOnce asks the store. One ask is a decision like any other.
func (e *engine) takeAllOnce(ctx context.Context, joints []*joint) (allowed bool, err error) {
	possible := every(joints, func(j *joint) bool { return j.q.possible() })
	if j := joints[0]; possible && len(joints) == 1 && len(j.parts) == 1 {
		j.outcome, err = e.store.take(ctx, &j.q)
		j.views = []algorithm.View{j.outcome.view}
		return j.outcome.granted > 0, err
	}
	return e.store.takeAll(ctx, joints, possible)
}

func granted(j *joint) bool { return j.outcome.granted > 0 }

// seen is a view of the joint as it stands, for each part.
func (j *joint) seen(v func(need float64) algorithm.View) {
	j.views = make([]algorithm.View, len(j.parts))
	for i, part := range j.parts {
		j.views[i] = v(part.upTo)
	}
	j.outcome.view = j.views[len(j.views)-1]
}

// judge tells, of an outcome that nothing was taken for, whether the sum would
// have fitted.
func (j *joint) judge(isBlocked bool) {
	o := &j.outcome
	switch {
	case isBlocked:
		o.granted = blocked
	case algorithm.Fit(j.q.room, o.view.Level(&j.q.Rules, o.updatedAt), j.q.cost) >= 1:
		o.granted = 1
	default:
		o.granted = 0
	}
}

// results gives each ask its own.
func (e *engine) results(asks []Ask, joints []*joint, allowed bool) Results {
	all := Results{Allowed: allowed, Binding: -1, Each: make([]Result, len(asks))}
	for _, j := range joints {
		for i, part := range j.parts {
			in := asks[part.index]
			if allowed {
				all.Each[part.index] = j.share(part, in, e.store.source())
			} else {
				all.Each[part.index] = j.refused(i, in, e.store.source())
				if j.outcome.blockedUntil > j.outcome.updatedAt { // perhaps since what is remembered
					e.denied.lift(in.Policy, in.Key)
				}
			}
		}
	}
	for i, r := range all.Each {
		if !r.Allowed && (all.Binding < 0 || r.RetryAfter > all.Each[all.Binding].RetryAfter) {
			all.Binding = i
		}
	}
	return all
}

// share is the part's answer where all was granted: as of before those after it.
func (j *joint) share(p part, in Ask, source Source) Result {
	q, o := j.q, j.outcome
	o.view = o.view.Less(q.units - p.upTo)
	q.units, q.cost, q.unit = in.Cost, in.Cost, in.Cost
	return q.result(verbTake, o, in.Policy, source)
}

// refused is the i-th part's answer where the whole was denied: whether it would
// have fitted after those before it, and until when it has to wait.
func (j *joint) refused(i int, in Ask, source Source) Result {
	q, o, need := j.q, j.outcome, j.parts[i].upTo
	o.view = j.views[i]
	q.room = min(q.Capacity, j.ahead+in.Cost)
	if o.granted == 0 && algorithm.Fit(q.room, o.view.Level(&q.Rules, o.updatedAt), need) >= 1 {
		o.granted = 1 // this part alone
	}
	q.units, q.cost, q.unit = need, need, need
	r := q.result(verbTake, o, in.Policy, source)
	r.Granted, r.Delay, r.grant = 0, 0, algorithm.Grant{}
	return r
}
