package commands

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// spans is the flags of usage that ask for sums.
type spans struct {
	since time.Duration
	by    string
}

func (s *spans) register(cmd *cobra.Command) {
	cli.DurationVar(cmd.Flags(), &s.since, "since", 0, "list what KEY has spent in each hour or day of this `time`, such as 7d: for policies with --usage-by")
	cmd.Flags().StringVar(&s.by, "by", "", "list by the `hour` or day, in UTC; default: hour up to --since 2d")
}

// check returns an error for flags that ask for nothing.
func (s *spans) check(cmd *cobra.Command) error {
	switch {
	case s.since < 0, s.since == 0 && cmd.Flags().Changed("since"):
		return fmt.Errorf("--since is %v: must be positive, such as 7d", s.since)
	case s.since == 0 && s.by != "":
		return fmt.Errorf("--by is %.20q without --since: add --since, such as 7d", s.by)
	case s.by == "" && s.since <= 48*time.Hour:
		s.by = string(limiter.Hour)
	case s.by == "":
		s.by = string(limiter.Day)
	}
	if s.by != string(limiter.Hour) && s.by != string(limiter.Day) {
		return fmt.Errorf("--by is %.20q: use hour or day", s.by)
	}
	return nil
}

// print lists the sums of a key.
func (s *spans) print(cmd *cobra.Command, db *connect.Database, out *cli.Output, flags *policyflags.Flags, key string) error {
	name := string(flags.Named())
	if name == "" {
		p, err := flags.Policy()
		if err != nil {
			return err
		}
		name = p.Name
	}
	return db.WithPolicies(cmd, func(live *policies.Policies) error {
		since := time.Now().Add(-s.since)
		sums, err := live.UsageSince(cmd.Context(), name, key, since, limiter.Calendar(s.by))
		if err != nil {
			return cli.LimiterError(err)
		}
		return out.Print(cmd, map[string]any{"policy": name, "since": since.UTC(), "by": s.by, "sums": sums}, sumsText(sums, s.by))
	})
}

// sumsText returns a line with a bar for each sum, and their total.
func sumsText(sums []policies.UsageSum, by string) string {
	if len(sums) == 0 {
		return "no usage is recorded: see pglimit policy set --usage-by\n"
	}
	layout, most, total := time.RFC3339, 0.0, 0.0
	if by == string(limiter.Day) {
		layout = time.DateOnly
	}
	for _, s := range sums {
		most, total = max(most, s.Units), total+s.Units
	}
	var text strings.Builder
	for _, s := range sums {
		width := 0
		if s.Units > 0 {
			width = int(math.Ceil(40 * s.Units / most))
		}
		fmt.Fprintf(&text, "%s\t%s\t%s\n", s.At.Format(layout), cli.Units(s.Units), strings.Repeat("#", width))
	}
	fmt.Fprintf(&text, "total\t%s\t\n", cli.Units(total))
	return cli.Aligned(text.String())
}
