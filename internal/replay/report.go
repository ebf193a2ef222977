package replay

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pglimit/pglimit/internal/accesslog"
	"github.com/pglimit/pglimit/internal/replay/timeline"
	"github.com/pglimit/pglimit/limiter"
)

const topDenied = 10 // number of keys in the report

// Report has the results of one Run. Its JSON is the JSON of pglimit replay.
type Report struct {
	// Name is the log's name.
	Name string `json:"-"`
	// Key is the name of the field that is the key of a request.
	Key string `json:"key_field"`
	// Requests is the number of requests, and Keys the number of their keys.
	Requests int `json:"requests"`
	Keys     int `json:"keys"`
	// BadLines is the number of lines that could not be read.
	BadLines int `json:"bad_lines"`
	// First and Last are the times of the first and the last request, in UTC.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Start is the beginning of the first part of the counts over time: at or before
	// First, and aligned to the clock. PartSeconds is the length of each part.
	Start       time.Time `json:"start"`
	PartSeconds float64   `json:"part_s"`
	// Candidates has the results of each candidate, in the order of Run's.
	Candidates []CandidateReport `json:"candidates"`

	parts timeline.Parts
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

func newReport(log *Log) *Report {
	first, last := log.events[0].at, log.events[len(log.events)-1].at
	p := timeline.Divide(first, last)
	return &Report{
		Name: log.Name, Key: cmp.Or(log.field, accesslog.DefaultKey), Requests: len(log.events), Keys: len(log.keys), BadLines: log.bad,
		First: timeline.UTC(first), Last: timeline.UTC(last), Start: timeline.UTC(p.Start), PartSeconds: float64(p.Length) / 1e6, parts: p,
	}
}

// tally has the counts of one candidate.
type tally struct {
	CandidateReport
	parts timeline.Parts
	keys  []keyTally // by number
}

type keyTally struct {
	requests, denied, row, longest int32
}

func newTally(r *Report, p limiter.Policy, cost float64, log *Log) *tally {
	n := r.parts.Count
	return &tally{
		CandidateReport: CandidateReport{
			Policy: p, Cost: cost, TopDenied: []KeyReport{},
			AllowedOverTime: make([]int, n), DelayedOverTime: make([]int, n), DeniedOverTime: make([]int, n),
		},
		parts: r.parts, keys: make([]keyTally, len(log.keys)),
	}
}

func (t *tally) add(e event, r limiter.Result) {
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
func (t *tally) finish(log *Log) CandidateReport {
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

// Shown returns a key for display. It quotes a key with control characters or characters
// that a page would not show, because clients can often choose their key.
func Shown(key string) string {
	if strings.IndexFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
		return strconv.Quote(key)
	}
	return key
}
