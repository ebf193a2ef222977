package replay

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/internal/replay"
)

// readCandidates returns the candidate of the policy flags, followed by the
// candidates of --candidate, or the first error in one.
func readCandidates(flags *policyflags.Flags, others []string) ([]replay.Candidate, error) {
	if n := len(others); n >= replay.MaxCandidates {
		return nil, fmt.Errorf("--candidate is given %d times: use it at most %d times, next to the policy of the flags", n, replay.MaxCandidates-1)
	}
	first, err := candidateOf(flags)
	if err != nil {
		return nil, err
	}
	candidates := []replay.Candidate{first}
	for _, text := range others {
		c, err := parseCandidate(text)
		if err != nil {
			return nil, fmt.Errorf("--candidate %.200q: %w", text, err)
		}
		candidates = append(candidates, c)
	}
	return candidates, nil
}

// candidateOf returns the candidate that a command's policy flags describe.
func candidateOf(f *policyflags.Flags) (replay.Candidate, error) {
	p, err := f.Policy()
	if err != nil {
		return replay.Candidate{}, err
	}
	c := replay.Candidate{Policy: p, Cost: f.Cost}
	return c, c.Validate()
}

// parseCandidate parses name=value pairs as if they were flags. block_for, the name
// in a policy's JSON, is --block-for.
func parseCandidate(text string) (replay.Candidate, error) {
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
			return replay.Candidate{}, fmt.Errorf("%q is not a field: use %s", name, strings.Join(names, ", "))
		case !ok:
			return replay.Candidate{}, fmt.Errorf("%s has no value: write %s=…", name, name)
		case flag.Changed:
			return replay.Candidate{}, fmt.Errorf("%s is given twice", name)
		}
		if err := cmd.Flags().Set(flag.Name, value); err != nil {
			return replay.Candidate{}, fmt.Errorf("%s is %q: must be %s", name, value, possible[flag.Value.Type()])
		}
	}
	if !cmd.Flags().Changed("limit") && !cmd.Flags().Changed("policy") {
		return replay.Candidate{}, errors.New("limit is missing: add a limit, such as limit=60")
	}
	return candidateOf(&flags)
}

// possible describes the values of each type of flag.
var possible = map[string]string{
	"float64": "a number, such as 60", "duration": "a duration, such as 1m30s or 30d", "bool": "true or false",
}
