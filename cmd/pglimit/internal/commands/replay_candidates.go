package commands

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// candidate is a candidate of the flags.
type candidate struct {
	replay.Candidate
	named policyflags.Selection // of a policy in the database, which Candidate lacks
	flag  string                // that describes it; empty: those of the policy
}

// readCandidates returns the candidate of the policy flags, followed by those of
// --candidate, or the first error in one.
func readCandidates(flags *policyflags.Flags, others []string) ([]candidate, error) {
	if n := len(others); n >= replay.MaxCandidates {
		return nil, fmt.Errorf("--candidate is given %d times: use it at most %d times, next to the policy of the flags", n, replay.MaxCandidates-1)
	}
	first, err := candidateOf(flags)
	if err != nil {
		return nil, err
	}
	candidates := []candidate{first}
	for _, text := range others {
		c, err := parseCandidate(text)
		c.flag = fmt.Sprintf("--candidate %.200q: ", text)
		if err != nil {
			return nil, fmt.Errorf("%s%w", c.flag, err)
		}
		candidates = append(candidates, c)
	}
	return candidates, nil
}

// candidateOf returns the candidate that a command's policy flags describe.
func candidateOf(f *policyflags.Flags) (candidate, error) {
	c := candidate{Candidate: replay.Candidate{Cost: f.Cost}, named: f.Named()}
	if c.named != "" {
		return c, nil
	}
	p, err := f.Policy()
	if err != nil {
		return c, err
	}
	return c, c.use(p)
}

// use sets the policy. A shadow policy decides as if it were enforced.
func (c *candidate) use(p limiter.Policy) error {
	c.Policy, c.Policy.Shadow = p, false
	return c.Validate()
}

// findCandidates returns the candidates, with the policies in the database that they name.
// pool is nil if they name none.
func findCandidates(cmd *cobra.Command, pool *pgxpool.Pool, wanted []candidate) ([]replay.Candidate, error) {
	var live *policies.Policies
	found := make([]replay.Candidate, len(wanted))
	for i, c := range wanted {
		if c.named != "" {
			if live == nil {
				var err error
				if live, err = connect.OpenPolicies(cmd, pool); err != nil {
					return nil, err
				}
				defer live.Close()
			}
			p, err := connect.FindPolicy(cmd, pool, live, c.named)
			if err == nil {
				err = c.use(p)
			}
			if err != nil {
				return nil, fmt.Errorf("%s%w", c.flag, err)
			}
		}
		found[i] = c.Candidate
	}
	return found, nil
}

// parseCandidate parses name=value pairs as if they were flags. block_for, the name
// in a policy's JSON, is --block-for.
func parseCandidate(text string) (candidate, error) {
	var flags policyflags.Flags
	cmd := &cobra.Command{}
	flags.RegisterDecision(cmd)
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		flag := cmd.Flags().Lookup(strings.ReplaceAll(name, "_", "-"))
		switch {
		case flag == nil:
			var names []string
			cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, strings.ReplaceAll(f.Name, "-", "_")) })
			return candidate{}, fmt.Errorf("%q is not a field: use %s", name, strings.Join(names, ", "))
		case !ok:
			return candidate{}, fmt.Errorf("%s has no value: write %s=…", name, name)
		case flag.Changed:
			return candidate{}, fmt.Errorf("%s is given twice", name)
		}
		if err := cmd.Flags().Set(flag.Name, value); err != nil {
			var invalid *pflag.InvalidValueError
			if errors.As(err, &invalid) {
				err = invalid.Unwrap()
			}
			return candidate{}, fmt.Errorf("%s is %.80q: %s", name, value, reason(flag, err))
		}
	}
	if !cmd.Flags().Changed("limit") && !cmd.Flags().Changed("policy") {
		return candidate{}, errors.New("limit is missing: add a limit, such as limit=60")
	}
	return candidateOf(&flags)
}
