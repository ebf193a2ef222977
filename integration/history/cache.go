//go:build unix

package history

import (
	"fmt"
	"slices"

	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/limiter"
)

// checkCached checks the answers that a process gave from memory. They take no part in the
// order of the others. Each repeats a denial of its own process, of an equal policy and at
// most the same cost:
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
		for j, source := range r.Sources {
			if source == limiter.SourceCache && !slices.ContainsFunc(denials(all), func(d denial) bool { return d.answers(r, j, all) }) {
				return fmt.Errorf("scene %d: no denial explains answer %d of %d-%d client %d process %d %s\n%s",
					s.number, j, r.Call, r.Return, r.Client, r.Process, describe(&r.Op, &r.Out), listed(all))
			}
		}
	}
	return nil
}

// denial is an answer of the database that its process may repeat.
type denial struct {
	*record
	key    int
	rules  *model.Rules
	units  float64 // of an AllowAll, with those before it for the same key
	answer model.Answer
}

func denials(all []record) (found []denial) {
	for i := range all {
		r := &all[i]
		if r.Out.Lost || r.Out.Fault != "" || r.cached() || r.Op.SQL {
			continue
		}
		switch a := r.Out.Answer; r.Op.Verb {
		case model.Allow, model.Reserve, model.Wait:
			if !a.Allowed && r.Op.Idem == 0 {
				found = append(found, denial{r, r.Op.Key, r.Op.Rules, r.Op.Units, a})
			}
		case model.AllowAll:
			needs := map[int]float64{}
			for j, q := range r.Op.Requests {
				needs[q.Key] += q.Units
				if !r.Out.Each[j].Allowed {
					found = append(found, denial{r, q.Key, q.Rules, needs[q.Key], r.Out.Each[j]})
				}
			}
		}
	}
	return found
}

// answers reports whether d explains the j-th answer of r.
func (d denial) answers(r *record, j int, all []record) bool {
	got, key, rules, units := r.Out.Answer, r.Op.Key, r.Op.Rules, r.Op.Units
	if r.Op.Verb == model.AllowAll {
		key, rules, units = r.Op.Requests[j].Key, r.Op.Requests[j].Rules, 0
		got = r.Out.Each[j]
		for _, q := range r.Op.Requests[:j+1] {
			if q.Key == key {
				units += q.Units
			}
		}
	}
	since := got.At - d.answer.At
	if d.Process != r.Process || d.key != key || *d.rules != *rules || d.Call > r.Return || units < d.units ||
		rules.Kind == model.Log && units != d.units || rules.Hourly ||
		since < 0 || since >= cacheFor.Microseconds() || since >= d.answer.RetryAfter || !slices.Contains(r.Op.Clocks, got.At) {
		return false
	}
	if slices.ContainsFunc(all, func(o record) bool { return o.forgets(d, r) }) {
		return false
	}
	want := d.answer
	want.At = got.At
	want.ResetAfter = max(0, want.ResetAfter-since)
	if want.RetryAfter != model.Never {
		want.RetryAfter -= since
	}
	if units > d.units { // it waits for more, or for ever
		if got.RetryAfter < want.RetryAfter {
			return false
		}
		want.RetryAfter = got.RetryAfter
	}
	want.Reason = got.Reason // a block that began with the denial is the reason of what comes after it
	if got.Reason == "limit" && d.answer.Reason == "blocked" && got.RetryAfter != model.Never {
		return false
	}
	return want.Differs(got, false, rules.Kind == model.Counter) == ""
}

// forgets reports whether an operation of the same process gave something back after d came
// and before r was asked.
func (o *record) forgets(d denial, r *record) bool {
	if o.Process != r.Process || o.Op.SQL || o.Op.Key != d.key || o.Call < d.Return || o.Return > r.Call || o.Out.Lost || o.Out.Fault != "" {
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
		text += fmt.Sprintf("%d-%d client %d process %d %s %v\n", r.Call, r.Return, r.Client, r.Process, describe(&r.Op, &r.Out), r.Sources)
	}
	return text
}
