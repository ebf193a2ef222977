package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

func policy(algorithm limiter.Algorithm, limit float64, period time.Duration) limiter.Policy {
	return limiter.Policy{Name: "p", Algorithm: algorithm, Limit: limit, Period: period}
}

func bucket(limit float64) Candidate {
	return Candidate{policy(limiter.TokenBucket, limit, time.Minute), 1}
}

// run replays in memory, and checks that the numbers agree with each other.
func run(t testing.TB, log *Log, candidates ...Candidate) *Report {
	t.Helper()
	r := must.OK(Run(t.Context(), log, candidates, InMemory, nil))(t)
	for i, c := range r.Candidates {
		sum := func(all []int) (n int) {
			for _, one := range all {
				n += one
			}
			return n
		}
		if c.Allowed+c.Delayed+c.Denied != r.Requests || sum(c.AllowedOverTime) != c.Allowed || sum(c.DelayedOverTime) != c.Delayed || sum(c.DeniedOverTime) != c.Denied {
			t.Errorf("candidate %d: %+v of %d requests", i, c, r.Requests)
		}
	}
	return r
}

var start = time.Date(2026, 5, 17, 10, 0, 0, 0, time.UTC)

// at returns a log of one client with requests at these seconds after start.
func at(seconds ...int) string {
	var text strings.Builder
	for _, s := range seconds {
		text.WriteString(line("192.0.2.1", start.Add(time.Duration(s)*time.Second).Format("02/Jan/2006:15:04:05 -0700")))
	}
	return text.String()
}

// TestRunLongestDelay: the longest delay is of all requests, not of the last.
func TestRunLongestDelay(t *testing.T) {
	t.Parallel()
	queue := policy(limiter.LeakyBucketQueue, 6, time.Minute)
	if r := run(t, read(t, at(0, 0, 0, 45, 50)), Candidate{queue, 1}); r.Candidates[0].Delayed != 3 || r.Candidates[0].LongestDelay != 20 {
		t.Errorf("%d delayed, the longest for %v s", r.Candidates[0].Delayed, r.Candidates[0].LongestDelay)
	}
}

// TestRunOutcomes: each algorithm decides by its definition. a: allowed, q: delayed in a
// queue, -: denied.
func TestRunOutcomes(t *testing.T) {
	tick := policy(limiter.LeakyBucket, 6, time.Minute)
	tick.Tick = 20 * time.Second
	burst := policy(limiter.TokenBucket, 6, time.Minute)
	burst.Burst = 2
	queue := policy(limiter.LeakyBucketQueue, 6, time.Minute)
	queue.Burst = 2
	aligned := policy(limiter.FixedWindow, 2, time.Minute)
	aligned.Aligned = true
	calendar := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 2, Calendar: limiter.Hour}
	block := policy(limiter.FixedWindow, 1, 10*time.Second)
	block.BlockFor = 30 * time.Second
	for _, c := range []struct {
		policy  limiter.Policy
		cost    float64
		seconds []int
		want    string
	}{
		{burst, 1, []int{0, 0, 0, 9, 10, 10, 31, 31}, "aa--a-aa"},
		{burst, 2, []int{0, 10, 20, 21}, "a-a-"},
		{policy(limiter.GCRA, 2, time.Minute), 1, []int{0, 0, 29, 30, 30}, "aa-a-"},
		{policy(limiter.LeakyBucket, 2, time.Minute), 1, []int{0, 0, 29, 30, 30}, "aa-a-"},
		{tick, 3, []int{0, 0, 0, 19, 20, 40, 41}, "aa---a-"}, // two leak every 20 s
		{queue, 1, []int{0, 0, 0, 5, 10, 60}, "aq--qa"},
		{policy(limiter.FixedWindow, 2, time.Minute), 1, []int{30, 40, 50, 89, 90, 90, 90}, "aa--aa-"},
		{aligned, 1, []int{30, 40, 50, 60, 60, 60}, "aa-aa-"},
		{calendar, 1, []int{3597, 3598, 3599, 3600, 3600, 3600}, "aa-aa-"},
		{policy(limiter.SlidingWindowCounter, 2, time.Minute), 1, []int{0, 0, 59, 60, 75, 90, 105}, "aa---a-"},
		{policy(limiter.SlidingWindowLog, 2, time.Minute), 1, []int{0, 30, 59, 60, 61, 89, 90}, "aa-a--a"},
		{block, 1, []int{0, 5, 20, 34, 35, 36}, "a---a-"},
	} {
		log := read(t, at(c.seconds...))
		var got strings.Builder
		for i := range c.seconds { // the effect of one request more
			before := CandidateReport{}
			if i > 0 {
				before = run(t, &Log{keys: log.keys, events: log.events[:i]}, Candidate{c.policy, c.cost}).Candidates[0]
			}
			switch after := run(t, &Log{keys: log.keys, events: log.events[:i+1]}, Candidate{c.policy, c.cost}).Candidates[0]; {
			case after.Allowed > before.Allowed:
				got.WriteByte('a')
			case after.Delayed > before.Delayed:
				got.WriteByte('q')
			case after.Denied > before.Denied:
				got.WriteByte('-')
			}
		}
		if got.String() != c.want {
			t.Errorf("%+v, cost %v, at %v: %s, want %s", c.policy, c.cost, c.seconds, &got, c.want)
		}
	}
}

// TestReportNumbers: the JSON report of a small log.
func TestReportNumbers(t *testing.T) {
	text := at(0, 0, 0, 1, 2) + strings.ReplaceAll(at(2, 2, 2, 2), "192.0.2.1", "203.0.113.9") + strings.ReplaceAll(at(1), "192.0.2.1", "b") + "rubbish\n"
	queue := policy(limiter.LeakyBucketQueue, 60, time.Minute)
	queue.Burst = 2
	got := must.OK(json.MarshalIndent(run(t, read(t, text), Candidate{policy(limiter.FixedWindow, 1, time.Second), 1}, Candidate{queue, 1}), "", " "))(t)
	golden(t, "report.json", got)
}

// TestReportTopDenied: the report has at most ten keys, sorted by denials, then by name.
func TestReportTopDenied(t *testing.T) {
	var text strings.Builder
	for i := range 30 {
		for range 2 + i%15 {
			text.WriteString(strings.ReplaceAll(at(0), "192.0.2.1", fmt.Sprintf("k%02d", i)))
		}
	}
	c := run(t, read(t, text.String()), bucket(1)).Candidates[0]
	if c.KeysDenied != 30 || len(c.TopDenied) != 10 {
		t.Fatalf("%d keys, %d reported", c.KeysDenied, len(c.TopDenied))
	}
	for i, k := range c.TopDenied {
		want := KeyReport{Key: fmt.Sprintf("k%02d", 14-i/2+i%2*15), Requests: 16 - i/2, Denied: 15 - i/2, InARow: 15 - i/2}
		if k != want {
			t.Errorf("%d: %+v, want %+v", i, k, want)
		}
	}
}

// TestRunCandidatesApart: candidates are independent, even with the same algorithm and
// name.
func TestRunCandidatesApart(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var text strings.Builder
	for i := range 2000 {
		text.WriteString(strings.ReplaceAll(at(i/4), "192.0.2.1", fmt.Sprintf("10.0.0.%d", random.IntN(random.IntN(20)+1))))
	}
	log := read(t, text.String())
	queue := Candidate{policy(limiter.LeakyBucketQueue, 10, time.Minute), 1}
	for _, all := range [][]Candidate{{bucket(10), bucket(10), {bucket(10).Policy, 3}}, {queue, bucket(5), {policy(limiter.SlidingWindowLog, 20, time.Minute), 1}}} {
		together := run(t, log, all...)
		for i, c := range all {
			if alone := run(t, log, c).Candidates[0]; alone.Denied == 0 || !reflect.DeepEqual(alone, together.Candidates[i]) {
				t.Errorf("candidate %d alone: %+v\nwith others: %+v", i, alone, together.Candidates[i])
			}
		}
	}
}

func TestRunProgress(t *testing.T) {
	log := read(t, at(make([]int, 2500)...))
	var reported []int
	must.OK(Run(t.Context(), log, []Candidate{bucket(1), bucket(2)}, InMemory, func(done int) { reported = append(reported, done) }))(t)
	if want := []int{1000, 2000, 3500, 4500}; !reflect.DeepEqual(reported, want) {
		t.Errorf("reported %v, want %v", reported, want)
	}
}

func TestRunErrors(t *testing.T) {
	log := read(t, at(0))
	broken := errors.New("no limiter")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var field *limiter.PolicyError
	for name, c := range map[string]struct {
		ctx        context.Context
		log        *Log
		candidates []Candidate
		make       func(*limiter.Config) (*limiter.Limiter, error)
		is         func(error) bool
		want       string
	}{
		"none":      {t.Context(), log, nil, InMemory, nil, "0 candidates"},
		"four":      {t.Context(), log, make([]Candidate, 4), InMemory, nil, "4 candidates: must be from 1 to 3"},
		"policy":    {t.Context(), log, []Candidate{bucket(1), bucket(0)}, InMemory, func(err error) bool { return errors.As(err, &field) && field.Field == "Limit" }, "candidate B"},
		"cost":      {t.Context(), log, []Candidate{{bucket(1).Policy, 0}}, InMemory, func(err error) bool { return errors.Is(err, limiter.ErrInvalid) }, "cost 0"},
		"empty log": {t.Context(), &Log{}, []Candidate{bucket(1)}, InMemory, func(err error) bool { return errors.As(err, new(*NotALogError)) }, "none of its 0 lines"},
		"limiter":   {t.Context(), log, []Candidate{bucket(1)}, func(*limiter.Config) (*limiter.Limiter, error) { return nil, broken }, func(err error) bool { return errors.Is(err, broken) }, ""},
		"cancelled": {ctx, log, []Candidate{bucket(1)}, InMemory, func(err error) bool { return errors.Is(err, context.Canceled) }, ""},
	} {
		r, err := Run(c.ctx, c.log, c.candidates, c.make, nil)
		if err == nil || r != nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !c.is(err) {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
}

// TestRunManyKeys replays a hundred thousand keys, each denied.
func TestRunManyKeys(t *testing.T) {
	const keys = 100_000
	log := &Log{}
	for i := range keys {
		log.keys = append(log.keys, fmt.Sprintf("2001:db8::%x", i))
		for range 2 {
			log.events = append(log.events, event{int64(i) * second / 100, int32(i)})
		}
	}
	r := run(t, log, bucket(1), Candidate{policy(limiter.SlidingWindowCounter, 1, time.Hour), 1})
	for _, c := range r.Candidates {
		if c.Allowed != keys || c.KeysDenied != keys || c.Denied != keys || len(c.TopDenied) != 10 {
			t.Errorf("%+v", c)
		}
	}
	if page := html(t, r); len(page) > 100_000 {
		t.Errorf("the page has %d bytes", len(page))
	}
}
