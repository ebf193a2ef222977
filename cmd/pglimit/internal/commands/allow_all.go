package commands

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

func newAllowAll(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags many
	cmd := &cobra.Command{
		Use:   "allow-all KEY...",
		Short: "Decide several requests at once, all or nothing",
		Long: `Decide several requests at once: all are allowed and counted, or none. --policy is
given once for each KEY, in the same order; one --policy goes with all keys, and
one KEY with all policies. The same holds for --cost and --floor. A repeated call
with the same --idempotency-key and the same requests returns the same answer.

With --json: {"allowed", "denied_by", "per_request": [...]}; denied_by is the
number, from 0, of the request that denied, or null.

Exit code 0: allowed; 1: denied.`,
		Example: `  pglimit allow-all --policy user alice --policy company acme
  pglimit allow-all --policy per-minute --policy per-day alice
  pglimit allow-all --policy requests --cost 1 alice --policy tokens --cost 4000 alice --json
  pglimit allow-all --policy orders --policy spend --cost 1 --cost 1299 acme --idempotency-key "order 1042"`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, keys []string) error {
			return flags.with(cmd, db, keys, func(l *limiter.Limiter, requests []limiter.Request) error {
				all, err := l.AllowAll(cmd.Context(), requests...)
				if err != nil {
					return cli.LimiterError(err)
				}
				return out.Answer(cmd, all.Allowed, all, allText(requests, all))
			})
		},
	}
	flags.register(cmd, "KEY")
	flags.registerCosts(cmd)
	return cmd
}

// many is the flags of several requests.
type many struct {
	policies, costs []string
	floors          []float64
	idempotencyKey  string
}

// register adds the flags but --cost. Each --policy is for one of what.
func (m *many) register(cmd *cobra.Command, what string) {
	cmd.Flags().StringArrayVar(&m.policies, "policy", nil, "`name` of a policy in the database or a program, or FILE#NAME; once for each "+what)
	cmd.Flags().Float64SliceVar(&m.floors, "floor", nil, "`share` of the burst that must stay free for others; once, or once for each")
	cmd.Flags().Lookup("floor").DefValue = "" // else the help has [] as the default
	cmd.Flags().StringVar(&m.idempotencyKey, "idempotency-key", "", "count calls with the same `text` once")
}

func (m *many) registerCosts(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&m.costs, "cost", nil, "`units` of a request; once, or once for each (default 1)")
}

// with calls do with a request for each policy and key.
func (m *many) with(cmd *cobra.Command, db *connect.Database, keys []string, do func(*limiter.Limiter, []limiter.Request) error) error {
	from, units, err := m.each(keys)
	if err != nil {
		return err
	}
	return db.WithSelected(cmd, from, func(l *limiter.Limiter, policies []limiter.Policy) error {
		requests := make([]limiter.Request, len(policies))
		for i, p := range policies {
			requests[i] = p.Request(nth(keys, i), units[i])
			if requests[i].IdempotencyKey = m.idempotencyKey; len(m.floors) > 0 {
				requests[i].Floor = nth(m.floors, i)
			}
		}
		return do(l, requests)
	})
}

// each returns the policy and the units of each request.
func (m *many) each(keys []string) (from []policyflags.Selection, units []float64, err error) {
	if len(m.policies) == 0 {
		return nil, nil, errors.New("--policy is missing: give one for each KEY, such as --policy login")
	}
	n := max(len(keys), len(m.policies))
	for _, part := range []struct {
		what  string
		given int
	}{{"KEY", len(keys)}, {"--policy", len(m.policies)}, {"--cost", len(m.costs)}, {"--floor", len(m.floors)}} {
		if part.given > 1 && part.given != n {
			return nil, nil, fmt.Errorf("%s is given %d times, for %d requests: give it once, or once for each request", part.what, part.given, n)
		}
	}
	from, units = make([]policyflags.Selection, n), make([]float64, n)
	for i := range n {
		from[i], units[i] = policyflags.Selection(nth(m.policies, i)), 1
		if len(m.costs) == 0 {
			continue
		}
		if units[i], err = cli.ParseUnits(nth(m.costs, i)); err != nil {
			return nil, nil, fmt.Errorf("--cost is %.80q: %w", nth(m.costs, i), err)
		}
	}
	return from, units, nil
}

// nth returns the value of request i, of values for all requests or of one for each.
func nth[T any](values []T, i int) T {
	if len(values) == 1 {
		return values[0]
	}
	return values[i]
}

// allText says what each request got. Of a denied whole, those that would have fitted were
// not counted.
func allText(requests []limiter.Request, all limiter.Results) string {
	var text strings.Builder
	if !all.Allowed {
		fmt.Fprintf(&text, "denied by %s, nothing was counted:\n", requests[all.DeniedBy].Policy.Name)
	}
	for i, r := range all.PerRequest {
		answer := cli.Decision(r) + cli.Floored(requests[i], r)
		if !all.Allowed && r.Allowed {
			answer = "would fit"
		}
		fmt.Fprintf(&text, "%s\t%s\t%s\n", requests[i].Policy.Name, printable.Shown(requests[i].Key), answer)
	}
	return cli.Aligned(text.String())
}
