package commands

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/accesslog"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

// reportText returns the report as text.
func reportText(r *replay.Report) string {
	var w strings.Builder
	span := r.First.Format(time.DateTime) + " to " + r.Last.Format(time.DateTime)
	several := len(r.Candidates) > 1
	if several {
		for i, c := range r.Candidates {
			fmt.Fprintf(&w, "%s: %s, %s\n", replay.Letter(i), c.Policy.Algorithm, c.Words())
		}
		fmt.Fprintf(&w, "%s\n\n", span)
	} else {
		c := r.Candidates[0]
		fmt.Fprintf(&w, "%s, %s: %s\n\n", c.Policy.Algorithm, c.Words(), span)
	}
	writeTotals(&w, r)
	for i, c := range r.Candidates {
		if c.Denied == 0 {
			continue
		}
		of := ""
		if several {
			of = replay.Letter(i) + ": "
		}
		fmt.Fprintf(&w, "\n%sdenied most:\n\n", of)
		for _, k := range c.TopDenied {
			fmt.Fprintf(&w, "  %s\t%d\n", printable.Shown(k.Key), k.Denied)
		}
		if len(c.DeniedOverTime) > 1 {
			fmt.Fprintf(&w, "\n%sdenied in each %s, UTC:\n\n%s", of, duration.Format(time.Duration(r.PartSeconds*float64(time.Second))), r.TextChart(c.DeniedOverTime))
		}
	}
	return cli.Aligned(w.String())
}

// writeTotals writes the table of totals, with a column for each candidate.
func writeTotals(w *strings.Builder, r *replay.Report) {
	row := func(name string, of int, n func(replay.CandidateReport) int) {
		fmt.Fprint(w, name)
		for _, c := range r.Candidates {
			fmt.Fprintf(w, "\t%d\t%.1f %%", n(c), 100*float64(n(c))/float64(of))
		}
		fmt.Fprintln(w)
	}
	outcomes := func() {
		row("allowed", r.Requests, func(c replay.CandidateReport) int { return c.Allowed })
		if slices.ContainsFunc(r.Candidates, func(c replay.CandidateReport) bool { return c.Policy.Algorithm == limiter.LeakyBucketQueue }) {
			row("delayed", r.Requests, func(c replay.CandidateReport) int { return c.Delayed })
		}
		row("denied", r.Requests, func(c replay.CandidateReport) int { return c.Denied })
	}
	keysDenied := func() { row("keys denied", r.Keys, func(c replay.CandidateReport) int { return c.KeysDenied }) }
	badLines := func() { writeSkipped(w, r.Summary) }
	fmt.Fprintf(w, "requests\t%d\n", r.Requests)
	if len(r.Candidates) == 1 {
		outcomes()
		fmt.Fprintf(w, "keys\t%d\n", r.Keys)
		keysDenied()
		badLines()
	} else {
		fmt.Fprintf(w, "keys\t%d\n", r.Keys)
		badLines()
		fmt.Fprintln(w)
		letters := ""
		for i := range r.Candidates {
			letters += "\t" + replay.Letter(i) + "\t"
		}
		fmt.Fprintln(w, strings.TrimSuffix(letters, "\t"))
		outcomes()
		keysDenied()
	}
}

// writeSkipped writes how much of the log is not in the counts, if anything.
func writeSkipped(w *strings.Builder, s replay.Summary) {
	if s.BadLines > 0 {
		fmt.Fprintf(w, "bad lines\t%d\n", s.BadLines)
	}
	if s.LeftOut > 0 {
		fmt.Fprintf(w, "left out\t%d\n", s.LeftOut)
	}
}

// suggestHelp describes --suggest.
const suggestHelp = `--suggest proposes limits from the log instead. It needs no --limit. For each
period of 1s, 1m, 1h and 24h that the log spans, or for --period:
1. It finds each key's peak: its most requests in any interval of that length.
2. limit is 1.25 times the peak that 99.9 % of the keys do not exceed, rounded up
   to a round number. Every key counts the same, however much it sent.
3. burst is 1.25 times the most requests that a bucket with that limit would have
   to hold at once, for 99.9 % of the keys.
4. It replays the log under that policy, and reports what is denied.
With fewer than a thousand keys, 99.9 % are all keys, so nothing is denied, not
even of an abuser. A short period stops bursts, a long one stops steady use; an
application can apply both.`

// suggest proposes limits for the named log.
func suggest(cmd *cobra.Command, out *cli.Output, parser *accesslog.Parser, file string, most replay.Bounds) error {
	policy, given, err := suggestFlags(cmd)
	if err != nil {
		return err
	}
	log, err := readLog(cmd, out, parser, file, most)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	periods := log.Periods()
	if given {
		periods = []time.Duration{policy.Period}
	}
	bar := progressBar(cmd, int64(log.Requests()*len(periods)), "deciding")
	all, err := replay.Suggest(cmd.Context(), log, policy.Name, periods, func(done int) { _ = bar.Set(done) })
	_ = bar.Close()
	if err != nil {
		return err
	}
	text, err := suggestText(all)
	if err != nil {
		return err
	}
	return out.Print(cmd, all, text)
}

// suggestFlags returns a policy with the name and the period of --suggest, and whether the
// period was given. The error names a flag that does not go with --suggest, or is not valid.
func suggestFlags(cmd *cobra.Command) (p limiter.Policy, given bool, err error) {
	flags := cmd.Flags()
	flags.Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "suggest", "policy", "period", "key", "since", "until", "max-clients", "max-requests", "json":
		default:
			if err == nil {
				err = fmt.Errorf("--%s does not go with --suggest: leave it out, or replay the policy that --suggest proposes", f.Name)
			}
		}
	})
	if err != nil {
		return p, false, err
	}
	p = limiter.Policy{Algorithm: limiter.TokenBucket, Limit: 1}
	if p.Name, err = flags.GetString("policy"); err == nil {
		p.Name = cmp.Or(p.Name, "cli")
		p.Period, err = flags.GetDuration("period")
	}
	if err == nil {
		err = p.Validate()
	}
	return p, flags.Changed("period"), err
}

// suggestText returns the suggestions as text. The file of policies is its end.
func suggestText(all *replay.Suggestions) (string, error) {
	var w strings.Builder
	fmt.Fprintf(&w, "%s of %s: %s to %s\n", printable.Count(all.Requests, "request"), printable.Count(all.Keys, "key"), all.First.Format(time.DateTime), all.Last.Format(time.DateTime))
	writeSkipped(&w, all.Summary)
	fmt.Fprint(&w, "\nmost requests of a key in any interval of one period:\n\n")
	fmt.Fprintln(&w, "PERIOD\t50 % OF THE KEYS\t99 %\t99.9 %\tALL")
	for _, s := range all.Suggestions {
		d := s.Demand
		fmt.Fprintf(&w, "%s\t%s\t%s\t%s\t%s\n", duration.Format(s.Policy.Period), cli.Units(d.P50), cli.Units(d.P99), cli.Units(d.P999), cli.Units(d.Max))
	}
	fmt.Fprintf(&w, "\ntoken buckets that admit 99.9 %% of the keys, with a headroom of %v:\n\n", all.Headroom)
	fmt.Fprintln(&w, "PERIOD\tLIMIT\tBURST\tREQUESTS DENIED\t\tKEYS DENIED\t")
	for _, s := range all.Suggestions {
		fmt.Fprintf(&w, "%s\t%s\t%s\t%d\t%.1f %%\t%d\t%.1f %%\n", duration.Format(s.Policy.Period), cli.Units(s.Policy.Limit), cli.Units(s.Policy.Burst),
			s.Denied, 100*float64(s.Denied)/float64(all.Requests), s.KeysDenied, 100*float64(s.KeysDenied)/float64(all.Keys))
	}
	fmt.Fprint(&w, "\nas flags:\n\n")
	for _, s := range all.Suggestions {
		fmt.Fprintln(&w, s.Flags)
	}
	fmt.Fprint(&w, "\nas a file for `pglimit policy import`:\n\n")
	text := cli.Aligned(w.String())
	w.Reset()
	err := all.File().Write(&w)
	return text + w.String(), err
}
