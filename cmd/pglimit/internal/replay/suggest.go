package replay

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// Headroom is the factor between what a log shows and what Suggest suggests.
const Headroom = 1.25

// Suggestions has the limits that Suggest derives from a log. Its JSON is the JSON of
// pglimit replay --suggest.
type Suggestions struct {
	Summary
	// Headroom is the constant.
	Headroom float64 `json:"headroom"`
	// Suggestions has one for each period, from the shortest.
	Suggestions []Suggestion `json:"suggestions"`
}

// Suggestion is a policy for one period, and what it would have done.
type Suggestion struct {
	// Period is the policy's period in seconds.
	Period float64 `json:"period_s"`
	// Demand has, over the keys, the most requests of a key in any interval of one
	// period.
	Demand Quantiles `json:"peak_demand"`
	// Backlog has, over the keys, the most requests of a key that a bucket with the
	// suggested limit had to hold at once.
	Backlog Quantiles `json:"peak_backlog"`
	// Policy is the suggested token bucket: Limit and Burst are Headroom times the 99.9th
	// percentile of Demand and of Backlog, rounded up to a round number.
	Policy limiter.Policy `json:"policy"`
	// Denied is the number of the log's requests that the policy would have denied, of
	// KeysDenied keys.
	Denied     int `json:"denied"`
	KeysDenied int `json:"keys_denied"`
	// Flags are those of the command for the policy.
	Flags string `json:"flags"`
}

// Quantiles are values that at least this share of the keys do not exceed.
type Quantiles struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// Periods returns the usual periods that are not longer than the log: 1s, 1m, 1h and 24h.
// 1s is always one of them.
func (l *Log) Periods() []time.Duration {
	span := time.Duration(0)
	if n := len(l.events); n > 0 {
		span = time.Duration(l.events[n-1].at-l.events[0].at) * time.Microsecond
	}
	all := []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour}
	return slices.DeleteFunc(all, func(p time.Duration) bool { return p > max(span, time.Second) })
}

// Suggest derives a policy for each period from the log, and replays the log under each. Of
// several periods, the policies' names are name and the period, such as api-1m. Its quantiles weigh all keys equally, whatever they sent. If progress is not
// nil, Suggest calls it after every thousand decisions with the number done, of
// log.Requests()*len(periods).
//
// The error is a *limiter.PolicyError for a name or a period that is not valid, a
// *NotALogError for an empty log, or ctx's.
func Suggest(ctx context.Context, log *Log, name string, periods []time.Duration, progress func(done int)) (*Suggestions, error) {
	if len(log.events) == 0 {
		return nil, &NotALogError{Lines: log.bad}
	}
	all := &Suggestions{Summary: log.summary(), Headroom: Headroom, Suggestions: []Suggestion{}}
	keys := byKey(log)
	for i, period := range periods {
		p := limiter.Policy{Name: name, Algorithm: limiter.TokenBucket, Limit: 1, Period: period}
		if len(periods) > 1 {
			p.Name += "-" + duration.Format(period)
		}
		if err := p.Validate(); err != nil {
			return nil, err
		}
		s := Suggestion{Period: period.Seconds()}
		var err error
		if s.Demand, err = keys.quantiles(ctx, func(at []int64) float64 { return peakDemand(at, period.Microseconds()) }); err != nil {
			return nil, err
		}
		p.Limit = RoundUp(Headroom * s.Demand.P999)
		perMicrosecond := p.Limit / float64(period.Microseconds())
		if s.Backlog, err = keys.quantiles(ctx, func(at []int64) float64 { return peakBacklog(at, perMicrosecond) }); err != nil {
			return nil, err
		}
		p.Burst = min(p.Limit, RoundUp(Headroom*s.Backlog.P999))
		report, err := Run(ctx, log, []Candidate{{p, 1}}, InMemory, func(done int) {
			if progress != nil {
				progress(i*len(log.events) + done)
			}
		})
		if err != nil {
			return nil, err
		}
		s.Policy, s.Denied, s.KeysDenied = p, report.Candidates[0].Denied, report.Candidates[0].KeysDenied
		s.Flags = fmt.Sprintf("--policy %s --algorithm %s --limit %s --period %s --burst %s", p.Name, p.Algorithm, printable.Number(p.Limit), duration.Format(period), printable.Number(p.Burst))
		all.Suggestions = append(all.Suggestions, s)
	}
	return all, nil
}

// File returns the policies as a file, which pglimit policy import reads.
func (all *Suggestions) File() (f policyfile.File) {
	for _, s := range all.Suggestions {
		f.Policies = append(f.Policies, policies.Stored{Policy: s.Policy})
	}
	return f
}

// keyOrder has the requests of a log in the order of their keys, and then of time.
type keyOrder struct {
	log    *Log
	events []int32 // indexes of log.events
	starts []int   // of each key in events, and the end
}

func byKey(log *Log) *keyOrder {
	o := &keyOrder{log, make([]int32, len(log.events)), make([]int, len(log.keys)+1)}
	for _, e := range log.events {
		o.starts[e.key+1]++
	}
	for i := range log.keys {
		o.starts[i+1] += o.starts[i]
	}
	next := slices.Clone(o.starts)
	for i, e := range log.events {
		o.events[next[e.key]] = int32(i)
		next[e.key]++
	}
	return o
}

// quantiles returns the quantiles of f, of the times of each key's requests.
func (o *keyOrder) quantiles(ctx context.Context, f func(at []int64) float64) (Quantiles, error) {
	values := make([]float64, len(o.log.keys))
	var times []int64
	for k := range values {
		if err := ctx.Err(); err != nil {
			return Quantiles{}, err
		}
		times = times[:0]
		for _, i := range o.events[o.starts[k]:o.starts[k+1]] {
			times = append(times, o.log.events[i].at)
		}
		values[k] = f(times)
	}
	slices.Sort(values)
	rank := func(thousandths int) float64 { // the nearest rank
		return values[max(0, (len(values)*thousandths+999)/1000-1)]
	}
	return Quantiles{rank(500), rank(990), rank(999), values[len(values)-1]}, nil
}

// peakDemand returns the most times in any interval of period microseconds. Of two times
// exactly a period apart one is outside.
func peakDemand(at []int64, period int64) float64 {
	most, from := 0, 0
	for i := range at {
		for at[i]-at[from] >= period {
			from++
		}
		most = max(most, i-from+1)
	}
	return float64(most)
}

// peakBacklog returns the highest level of a bucket that holds one unit for each time and
// leaks at rate: the least burst without a denial.
func peakBacklog(at []int64, rate float64) float64 {
	level, most := 0.0, 0.0
	for i := range at {
		if i > 0 {
			level = max(0, level-float64(at[i]-at[i-1])*rate)
		}
		level++
		most = max(most, level)
	}
	return most
}

// RoundUp returns the next number, from n on, that is a whole number up to 10, or else has
// one digit, or two of which the second is 5, and zeros: 1, 2, … 10, 15, 20, … 100, 150, ….
func RoundUp(n float64) float64 {
	const slack = 1e-9 // of the multiplication
	step := 1.0
	for 10*step < n*(1-slack) {
		step *= 10
	}
	if step > 1 {
		step /= 2
	}
	return max(1, math.Ceil(n*(1-slack)/step)*step)
}
