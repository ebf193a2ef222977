package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/guptarohit/asciigraph"

	"github.com/pglimit/pglimit/limiter"
)

const (
	topDenied  = 10 // how many keys are told
	histogram  = 60 // how many parts of the log's time
	graphLines = 8
)

// replayReport is what a policy would have done.
type replayReport struct {
	Requests   int         `json:"requests"`
	Allowed    int         `json:"allowed"`
	Denied     int         `json:"denied"`
	Keys       int         `json:"keys"`
	KeysDenied int         `json:"keys_denied"`
	TopDenied  []deniedKey `json:"top_denied"`
	BadLines   int         `json:"bad_lines"`
	First      time.Time   `json:"first"`
	Last       time.Time   `json:"last"`
	// DeniedOverTime counts the denials in equal parts of the time from First
	// to Last, each of PartSeconds.
	DeniedOverTime []int   `json:"denied_over_time"`
	PartSeconds    float64 `json:"part_s"`

	part  int64
	first int64
	byKey []int
}

type deniedKey struct {
	Key    string `json:"key"`
	Denied int    `json:"denied"`
}

func newReplayReport(log *accessLog) *replayReport {
	first, last := log.events[0].at, log.events[len(log.events)-1].at
	part := (last-first)/histogram + 1
	return &replayReport{
		Keys: len(log.keys), BadLines: log.bad,
		First: time.UnixMicro(first).UTC(), Last: time.UnixMicro(last).UTC(),
		DeniedOverTime: make([]int, (last-first)/part+1), PartSeconds: float64(part) / 1e6,
		part: part, first: first, byKey: make([]int, len(log.keys)),
	}
}

func (r *replayReport) count(e accessEvent, allowed bool) {
	r.Requests++
	if allowed {
		r.Allowed++
		return
	}
	r.Denied++
	r.byKey[e.key]++
	r.DeniedOverTime[(e.at-r.first)/r.part]++
}

// finish finds the keys that were denied most.
func (r *replayReport) finish(log *accessLog) {
	r.TopDenied = []deniedKey{}
	for key, denied := range r.byKey {
		if denied > 0 {
			r.KeysDenied++
			r.TopDenied = append(r.TopDenied, deniedKey{log.keys[key], denied})
		}
	}
	slices.SortFunc(r.TopDenied, func(a, b deniedKey) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.Key, b.Key))
	})
	r.TopDenied = r.TopDenied[:min(topDenied, len(r.TopDenied))]
}

// text is the report for people.
func (r *replayReport) text(p limiter.Policy) string {
	var w strings.Builder
	fmt.Fprintf(&w, "%s, %s per %s", p.Algorithm, units(p.Limit), per(p))
	if p.Burst != 0 {
		fmt.Fprintf(&w, ", burst %s", units(p.Burst))
	}
	fmt.Fprintf(&w, ": %s to %s\n\n", r.First.Format(time.DateTime), r.Last.Format(time.DateTime))
	table := tabwriter.NewWriter(&w, 0, 0, 2, ' ', 0)
	share := func(n, of int) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(of)) }
	fmt.Fprintf(table, "requests\t%d\n", r.Requests)
	fmt.Fprintf(table, "allowed\t%d\t%s\n", r.Allowed, share(r.Allowed, r.Requests))
	fmt.Fprintf(table, "denied\t%d\t%s\n", r.Denied, share(r.Denied, r.Requests))
	fmt.Fprintf(table, "keys\t%d\n", r.Keys)
	fmt.Fprintf(table, "keys denied\t%d\t%s\n", r.KeysDenied, share(r.KeysDenied, r.Keys))
	if r.BadLines > 0 {
		fmt.Fprintf(table, "bad lines\t%d\n", r.BadLines)
	}
	_ = table.Flush()
	if r.Denied == 0 {
		return w.String()
	}
	fmt.Fprint(&w, "\ndenied most:\n\n")
	table = tabwriter.NewWriter(&w, 0, 0, 2, ' ', 0)
	for _, k := range r.TopDenied {
		fmt.Fprintf(table, "  %s\t%d\n", shown(k.Key), k.Denied)
	}
	_ = table.Flush()
	if len(r.DeniedOverTime) > 1 {
		counts := make([]float64, len(r.DeniedOverTime))
		for i, n := range r.DeniedOverTime {
			counts[i] = float64(n)
		}
		fmt.Fprintf(&w, "\n%s\n", asciigraph.Plot(counts, asciigraph.Height(graphLines), asciigraph.LowerBound(0), asciigraph.Precision(0),
			asciigraph.Caption(fmt.Sprintf("denied in each %v", time.Duration(r.PartSeconds*float64(time.Second)).Round(time.Millisecond)))))
	}
	return w.String()
}
