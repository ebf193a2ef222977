package replay

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/internal/accesslog"
	"github.com/pglimit/pglimit/internal/replay"
	"github.com/pglimit/pglimit/limiter"
)

// suggestHelp describes --suggest.
const suggestHelp = `--suggest proposes limits from the log instead. It needs no --limit. For each
period of 1s, 1m, 1h and 24h that the log spans, or for --period:
1. It finds each key's peak: its most requests in any interval of that length.
2. limit is 1.25 times the peak that 99.9 % of the keys do not exceed, rounded up
   to a round number. Every key counts the same, however much it sent.
3. burst is the same of another peak: the most requests at once that a bucket
   with that limit would have to hold for the key.
4. It replays the log under that policy, and reports what is denied.
With fewer than a thousand keys, 99.9 % are all keys, so nothing is denied, not
even of an abuser. A short period stops bursts, a long one stops steady use; an
application can take limits of both.`

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
	return out.Print(cmd, all, suggestText(all))
}

// suggestFlags returns a policy with the name and the period of --suggest, and whether the
// period was given. The error names a flag that does not go with --suggest, or is not valid.
func suggestFlags(cmd *cobra.Command) (p limiter.Policy, given bool, err error) {
	flags := cmd.Flags()
	flags.Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "suggest", "name", "period", "key", "max-clients", "max-requests", "json":
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
	if p.Name, err = flags.GetString("name"); err == nil {
		p.Period, err = flags.GetDuration("period")
	}
	if err == nil {
		err = p.Validate()
	}
	return p, flags.Changed("period"), err
}

// suggestText returns the suggestions as text.
func suggestText(all *replay.Suggestions) string {
	var w strings.Builder
	fmt.Fprintf(&w, "%d requests of %d keys: %s to %s\n", all.Requests, all.Keys, all.First.Format(time.DateTime), all.Last.Format(time.DateTime))
	if all.BadLines > 0 {
		fmt.Fprintf(&w, "%d bad lines\n", all.BadLines)
	}
	fmt.Fprint(&w, "\nmost requests of a key in any interval of one period:\n\n")
	table := newTable(&w)
	fmt.Fprintln(table, "PERIOD\t50 % OF THE KEYS\t99 %\t99.9 %\tALL")
	for _, s := range all.Suggestions {
		d := s.Demand
		fmt.Fprintf(table, "%v\t%v\t%v\t%v\t%v\n", s.Policy.Period, d.P50, d.P99, d.P999, d.Max)
	}
	_ = table.Flush()
	fmt.Fprintf(&w, "\ntoken buckets that admit 99.9 %% of the keys, with a headroom of %v:\n\n", all.Headroom)
	table = newTable(&w)
	fmt.Fprintln(table, "PERIOD\tLIMIT\tBURST\tREQUESTS DENIED\t\tKEYS DENIED\t")
	for _, s := range all.Suggestions {
		fmt.Fprintf(table, "%v\t%v\t%v\t%d\t%.1f %%\t%d\t%.1f %%\n", s.Policy.Period, s.Policy.Limit, s.Policy.Burst,
			s.Denied, 100*float64(s.Denied)/float64(all.Requests), s.KeysDenied, 100*float64(s.KeysDenied)/float64(all.Keys))
	}
	_ = table.Flush()
	for _, s := range all.Suggestions {
		fmt.Fprintf(&w, "\n%s\n\n", s.Flags)
		for line := range strings.Lines(s.YAML()) {
			fmt.Fprintf(&w, "    %s", line)
		}
	}
	return w.String()
}
