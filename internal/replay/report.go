package replay

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pglimit/pglimit/internal/replay/timeline"
	"github.com/pglimit/pglimit/limiter"
)

const topDenied = 10 // how many keys are told

// Report is what the candidates of one Run, which makes it, would have done. Its
// JSON is the command's.
type Report struct {
	// Name is the log's.
	Name string `json:"-"`
	// Requests is how many there were, and Keys by how many clients.
	Requests int `json:"requests"`
	Keys     int `json:"keys"`
	// BadLines is how many lines of the log could not be read.
	BadLines int `json:"bad_lines"`
	// First and Last are when the first and the last request came, in UTC.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Start is where the first part of the candidates' counts over time begins:
	// not after First, and on the clock. PartSeconds is how long each part is.
	Start       time.Time `json:"start"`
	PartSeconds float64   `json:"part_s"`
	// Candidates has what each would have done, in the order of Run's.
	Candidates []CandidateReport `json:"candidates"`

	parts timeline.Parts
}

// CandidateReport is what one candidate would have done. Each request is in one
// of Allowed, Delayed and Denied.
type CandidateReport struct {
	Policy limiter.Policy `json:"policy"`
	Cost   float64        `json:"cost"`
	// Allowed is how many requests went through at once, Delayed how many a queue
	// would have had wait, the longest for LongestDelay seconds, and Denied how
	// many would have been refused, to KeysDenied clients.
	Allowed      int     `json:"allowed"`
	Delayed      int     `json:"delayed"`
	Denied       int     `json:"denied"`
	KeysDenied   int     `json:"keys_denied"`
	LongestDelay float64 `json:"longest_delay_s"`
	// TopDenied has the ten keys denied most, the most first.
	TopDenied []KeyReport `json:"top_denied"`
	// The same outcomes in each part of the log's time, see Report.Start.
	AllowedOverTime []int `json:"allowed_over_time"`
	DelayedOverTime []int `json:"delayed_over_time"`
	DeniedOverTime  []int `json:"denied_over_time"`
}

// KeyReport is what a candidate would have done to one key.
type KeyReport struct {
	Key      string `json:"key"`
	Requests int    `json:"requests"`
	Denied   int    `json:"denied"`
	// InARow is the most denials of the key with nothing let through between them.
	InARow int `json:"denied_in_a_row"`
}

func newReport(log *Log) *Report {
	first, last := log.events[0].at, log.events[len(log.events)-1].at
	p := timeline.Divide(first, last)
	return &Report{
		Name: log.Name, Requests: len(log.events), Keys: len(log.keys), BadLines: log.bad,
		First: timeline.UTC(first), Last: timeline.UTC(last), Start: timeline.UTC(p.Start), PartSeconds: float64(p.Length) / 1e6, parts: p,
	}
}

// tally counts for one candidate.
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

// Shown returns a key for people. A key is quoted if it has characters that a terminal
// would obey instead of showing, or that a page would not show: keys often come from
// the clients that are limited.
func Shown(key string) string {
	if strings.IndexFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
		return strconv.Quote(key)
	}
	return key
}
