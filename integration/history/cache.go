//go:build unix

package history

import (
	"fmt"
	"slices"

	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/limiter"
)

// checkCached checks the answers that a process gave from memory. They take no part in the
// order of the others. Each repeats a denial of its own process, of an equal policy, at most
// the same cost and at most the same floor:
//
//   - The denial was asked for before this answer came, at most DenyCacheTTL and less than
//     its RetryAfter ago, by the clock.
//   - This process gave nothing back for the key after the denial came.
//   - The fields are those of the denial, and its times are shorter by the time since.
func checkCached(s *scene, all []record) error {
	for i := range all {
		r := &all[i]
		if !r.cached() {
			continue
		}
		for j, a := range requests(r) {
			if a.Source == limiter.SourceCache && !slices.ContainsFunc(denials(all), func(d denial) bool { return d.answers(r, a, all) }) {
				return fmt.Errorf("scene %d: no denial explains answer %d of %d-%d client %d process %d %s\n%s",
					s.number, j, r.Call, r.Return, r.Client, r.Process, describe(&r.Op, &r.Out), listed(all))
			}
		}
	}
	return nil
}

// asked is a request, of one key, and its answer.
type asked struct {
	model.Request // of an AllowAll, the units are with those before it for the same key
	limiter.Result
}

// denial is an answer of the database that its process may repeat.
type denial struct {
	*record
	asked
}

// requests returns the requests of a record.
func requests(r *record) (all []asked) {
	if !r.Op.Verb.Sets() {
		return []asked{{model.Request{Key: r.Op.Key, Policy: r.Op.Policy, Units: r.Op.Units, Floor: r.Op.Floor}, r.Out.Result}}
	}
	needs := map[int]float64{}
	for j, q := range r.Op.Requests {
		needs[q.Key] += q.Units
		q.Units = needs[q.Key]
		all = append(all, asked{q, r.Out.All.PerRequest[j]})
	}
	return all
}

func denials(all []record) (found []denial) {
	for i := range all {
		r := &all[i]
		if r.Out.Lost || r.Out.Fault != "" || r.cached() || r.Op.SQL || r.Op.Idem != 0 {
			continue
		}
		switch r.Op.Verb {
		case model.Allow, model.Reserve, model.Wait, model.AllowAll, model.ReserveAll:
			for _, a := range requests(r) {
				if r.Op.Estimate { // it was denied less than it asked for, or more
					a.Units = 0
				}
				if !a.Allowed {
					found = append(found, denial{r, a})
				}
			}
		}
	}
	return found
}

// answers reports whether d explains the answer to a request of r.
func (d denial) answers(r *record, a asked, all []record) bool {
	since := a.At.Sub(d.At)
	if d.Process != r.Process || d.Key != a.Key || d.Request.Policy != a.Request.Policy || d.Call > r.Return || a.Units < d.Units || a.Floor < d.Floor ||
		a.Request.Policy.Algorithm == limiter.SlidingWindowLog && !d.Op.Estimate && (a.Units != d.Units || a.Floor != d.Floor) || a.Request.Policy.Calendar != "" ||
		since < 0 || since >= cacheFor || since >= d.RetryAfter || !slices.Contains(r.Op.Clocks, a.At.UnixMicro()) {
		return false
	}
	if slices.ContainsFunc(all, func(o record) bool { return o.forgets(d, r) }) {
		return false
	}
	want := d.Result
	want.At = a.At
	want.ResetAfter = max(0, want.ResetAfter-since)
	if want.RetryAfter != limiter.Never {
		want.RetryAfter -= since
	}
	if a.Units > d.Units || a.Floor > d.Floor { // it waits for more, or for ever
		if a.RetryAfter < want.RetryAfter {
			return false
		}
		want.RetryAfter = a.RetryAfter
	}
	want.Reason = a.Reason // a block that began with the denial is the reason of what comes after it
	if a.Reason == limiter.ReasonLimit && d.Reason == limiter.ReasonBlocked && a.RetryAfter != limiter.Never {
		return false
	}
	return model.Same(a.Request.Policy, want, a.Result)
}

// forgets reports whether an operation of the same process gave something back after d came
// and before r was asked.
func (o *record) forgets(d denial, r *record) bool {
	if o.Process != r.Process || o.Op.SQL || o.Op.Key != d.Key || o.Call < d.Return || o.Return > r.Call || o.Out.Lost || o.Out.Fault != "" {
		return false
	}
	switch o.Op.Verb {
	case model.Refund, model.Reset, model.Block, model.Unblock:
		return true
	}
	return false
}

func listed(all []record) (text string) {
	for _, r := range all {
		text += fmt.Sprintf("%d-%d client %d process %d %s\n", r.Call, r.Return, r.Client, r.Process, describe(&r.Op, &r.Out))
	}
	return text
}
