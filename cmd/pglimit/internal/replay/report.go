// Package replay reports what policies would have done to the requests of a web access
// log.
//
//	log, err := replay.Read(ctx, file, replay.Bounds{}, nil)
//	report, err := replay.Run(ctx, log, []replay.Candidate{{Policy: strict, Cost: 1}, {Policy: lax, Cost: 1}},
//		replay.InMemory, nil)
//	err = report.WriteHTML(w)
//
// Each client address is a key, and the log's times are the clock. Each candidate
// decides independently. A request is allowed, delayed (allowed by a queue, after
// waiting for its turn) or denied. The replay does not guess what a denied client would
// have done next, such as retry.
package replay

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/accesslog"
	"github.com/pglimit/pglimit/limiter"
)

const topDenied = 10 // number of keys in the report

// Summary describes a log.
type Summary struct {
	// Key is the name of the field that is the key of a request.
	Key string `json:"key_field"`
	// Requests is the number of requests, and Keys the number of their keys.
	Requests int `json:"requests"`
	Keys     int `json:"keys"`
	// BadLines is the number of lines that could not be read.
	BadLines int `json:"bad_lines"`
	// LeftOut is the number of requests outside the bounds' Since and Until.
	LeftOut int `json:"left_out"`
	// First and Last are the times of the first and the last request, in UTC.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Report has the results of one Run. Its JSON is the JSON of pglimit replay.
type Report struct {
	// Name is the log's name.
	Name string `json:"-"`
	Summary
	// Start is the beginning of the first part of the counts over time: at or before
	// First, and aligned to the clock. PartSeconds is the length of each part.
	Start       time.Time `json:"start"`
	PartSeconds float64   `json:"part_s"`
	// Candidates has the results of each candidate, in the order of Run's.
	Candidates []CandidateReport `json:"candidates"`

	parts Parts
}

// CandidateReport has the results of one candidate. Each request is in one of Allowed,
// Delayed and Denied.
type CandidateReport struct {
	Policy limiter.Policy `json:"policy"`
	Cost   float64        `json:"cost"`
	// Allowed is the number of requests allowed at once. Delayed is the number that
	// would have waited in a queue, for at most LongestDelay seconds. Denied is the
	// number denied, of KeysDenied keys.
	Allowed      int     `json:"allowed"`
	Delayed      int     `json:"delayed"`
	Denied       int     `json:"denied"`
	KeysDenied   int     `json:"keys_denied"`
	LongestDelay float64 `json:"longest_delay_s"`
	// TopDenied has the ten keys denied most, in descending order.
	TopDenied []KeyReport `json:"top_denied"`
	// The outcomes in each part of the log's time; see Report.Start.
	AllowedOverTime []int `json:"allowed_over_time"`
	DelayedOverTime []int `json:"delayed_over_time"`
	DeniedOverTime  []int `json:"denied_over_time"`
}

// KeyReport has the results of one key.
type KeyReport struct {
	Key      string `json:"key"`
	Requests int    `json:"requests"`
	Denied   int    `json:"denied"`
	// InARow is the most consecutive denials of the key.
	InARow int `json:"denied_in_a_row"`
}

// summary returns the summary of a log that has requests.
func (l *Log) summary() Summary {
	return Summary{
		Key: cmp.Or(l.field, accesslog.DefaultKey), Requests: len(l.events), Keys: len(l.keys), BadLines: l.bad, LeftOut: l.cut.requests,
		First: utc(l.events[0].at), Last: utc(l.events[len(l.events)-1].at),
	}
}

func newReport(log *Log) *Report {
	p := divide(log.events[0].at, log.events[len(log.events)-1].at)
	return &Report{Name: log.Name, Summary: log.summary(), Start: utc(p.Start), PartSeconds: float64(p.Length) / 1e6, parts: p}
}

// counts has the numbers of one candidate.
type counts struct {
	CandidateReport
	parts Parts
	keys  []keyCounts // by number
}

type keyCounts struct {
	requests, denied, row, longest int32
}

func newCounts(r *Report, p limiter.Policy, cost float64, log *Log) *counts {
	n := r.parts.Count
	return &counts{
		CandidateReport: CandidateReport{
			Policy: p, Cost: cost, TopDenied: []KeyReport{},
			AllowedOverTime: make([]int, n), DelayedOverTime: make([]int, n), DeniedOverTime: make([]int, n),
		},
		parts: r.parts, keys: make([]keyCounts, len(log.keys)),
	}
}

func (t *counts) add(e event, r limiter.Result) {
	k, part := &t.keys[e.key], t.parts.Index(e.at)
	k.requests++
	switch {
	case !r.Allowed:
		t.Denied++
		t.DeniedOverTime[part]++
		k.denied++
		k.row++
		k.longest = max(k.longest, k.row)
		return
	case r.Delay > 0:
		t.Delayed++
		t.DelayedOverTime[part]++
		t.LongestDelay = max(t.LongestDelay, r.Delay.Seconds())
	default:
		t.Allowed++
		t.AllowedOverTime[part]++
	}
	k.row = 0
}

// finish adds the keys that were denied most.
func (t *counts) finish(log *Log) CandidateReport {
	var denied []int
	for i, k := range t.keys {
		if k.denied > 0 {
			denied = append(denied, i)
		}
	}
	t.KeysDenied = len(denied)
	slices.SortFunc(denied, func(a, b int) int {
		return cmp.Or(cmp.Compare(t.keys[b].denied, t.keys[a].denied), cmp.Compare(log.keys[a], log.keys[b]))
	})
	for _, i := range denied[:min(topDenied, len(denied))] {
		k := t.keys[i]
		t.TopDenied = append(t.TopDenied, KeyReport{
			Key: log.keys[i], Requests: int(k.requests), Denied: int(k.denied), InARow: int(k.longest),
		})
	}
	return t.CandidateReport
}

// Letter returns the name of the i-th candidate, from A.
func Letter(i int) string { return string(rune('A' + i)) }

// MaxCandidates is the most candidates of one Run: more would not fit on a page.
const MaxCandidates = 3

// Candidate is a policy to try, with the cost of each request.
type Candidate struct {
	Policy limiter.Policy
	Cost   float64 // units per request; required
}

// Validate returns nil if c is valid, or a *limiter.PolicyError or another
// limiter.ErrInvalid that names the invalid part.
func (c Candidate) Validate() error {
	_, err := limiter.NewMemory(nil).AllowN(context.Background(), c.Policy, "any", c.Cost)
	return err
}

// InMemory makes the limiters of a Run without a database.
func InMemory(config *limiter.Config) (*limiter.Limiter, error) {
	return limiter.NewMemory(config), nil
}

// Run decides each request of the log, at its time, under each of 1 to MaxCandidates
// candidates, one candidate after the other. Each gets a limiter from newLimiter, such as
// InMemory, which must have nothing counted. If progress is not nil, Run calls it after
// every thousand decisions with the number done, of log.Requests()*len(candidates).
//
// Run returns an error for an invalid candidate before it decides anything, or the error
// of newLimiter or of a decision.
func Run(ctx context.Context, log *Log, candidates []Candidate, newLimiter func(*limiter.Config) (*limiter.Limiter, error), progress func(done int)) (*Report, error) {
	switch n := len(candidates); {
	case n < 1 || n > MaxCandidates:
		return nil, fmt.Errorf("%d candidates: must be from 1 to %d", n, MaxCandidates)
	case len(log.events) == 0:
		return nil, &NotALogError{Lines: log.bad}
	}
	for i, c := range candidates {
		if err := c.Validate(); err != nil {
			return nil, fmt.Errorf("candidate %s: %w", Letter(i), err)
		}
	}
	report := newReport(log)
	for i, c := range candidates {
		var now int64
		l, err := newLimiter(&limiter.Config{Now: func() time.Time { return time.UnixMicro(now) }, DisableDenyCache: true, MaxKeys: len(log.keys)})
		if err != nil {
			return nil, err
		}
		count := newCounts(report, c.Policy, c.Cost, log)
		for j, e := range log.events {
			now = e.at
			r, err := l.AllowN(ctx, c.Policy, log.keys[e.key], c.Cost)
			if err != nil {
				return nil, err
			}
			count.add(e, r)
			if j%1000 == 999 && progress != nil {
				progress(i*len(log.events) + j + 1)
			}
		}
		report.Candidates = append(report.Candidates, count.finish(log))
	}
	return report, nil
}
