package commands

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/policies"
)

func newEvents(db *connect.Database, out *cli.Output) *cobra.Command {
	var since time.Duration
	var limit int64
	var follow bool
	cmd := &cobra.Command{
		Use:   "events [POLICY]",
		Short: "List the keys that have reached a mark",
		Long: `List the keys that have reached a mark of their policy, such as 80%: newest first,
or with --follow as they come. A policy has marks by policy set --marks.
The list delivers nothing: serve --webhook and Policies.Events do that.
Keys are as stored: with PGLIMIT_KEY_SECRET in the application, their HMAC.`,
		Example: `  pglimit policy set spend --marks 80%,100%
  pglimit events spend --since 7d
  pglimit events --json --follow`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if since <= 0 || limit < 1 || limit > 10_000 {
				return fmt.Errorf("--since is %v and --limit %d: must be positive, and at most 10000", since, limit)
			}
			policy := ""
			if len(args) > 0 {
				policy = args[0]
			}
			return db.WithPoliciesOf(cmd, func(pool *pgxpool.Pool, _ *policies.Policies) error {
				if follow {
					return followEvents(cmd, pool, out, policy, time.Now().Add(-since), limit)
				}
				all, err := readEvents(cmd, pool, policy, time.Now().Add(-since), limit)
				if err != nil {
					return err
				}
				return out.Print(cmd, map[string]any{"events": all}, eventsText(all))
			})
		},
	}
	cli.DurationVar(cmd.Flags(), &since, "since", 24*time.Hour, "how far back, such as 7d")
	cmd.Flags().Int64Var(&limit, "limit", 100, "most `events`, up to 10000; with --follow, in a second")
	cmd.Flags().BoolVar(&follow, "follow", false, "print events as they come, until Ctrl-C; with --json one in a line")
	return cmd
}

// readEvents returns events, newest first.
func readEvents(cmd *cobra.Command, pool *pgxpool.Pool, policy string, since time.Time, limit int64) ([]policies.Event, error) {
	rows, err := db.New().EventList(cmd.Context(), pool, db.EventListParams{Policy: policy, SinceUs: since.UnixMicro(), MaxRows: limit})
	if err != nil {
		return nil, cli.LimiterError(exec.Translate(err, false))
	}
	all := make([]policies.Event, len(rows))
	for i, r := range rows {
		all[i] = policies.EventOf(r)
	}
	return all, nil
}

// followEvents prints events until the command's context ends. A transaction can commit an event
// after a later one, so each look goes back by a minute.
func followEvents(cmd *cobra.Command, pool *pgxpool.Pool, out *cli.Output, policy string, since time.Time, limit int64) error {
	printed := map[string]bool{}
	each := time.NewTicker(time.Second)
	defer each.Stop()
	for ctx := cmd.Context(); ; {
		all, err := readEvents(cmd, pool, policy, since, limit)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		now := map[string]bool{}
		for _, e := range slices.Backward(all) {
			if now[e.ID] = true; printed[e.ID] {
				continue
			}
			if out.JSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(e)
			} else {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.ReplaceAll(eventLine(e), "\t", "  "))
			}
			if err != nil {
				return err
			}
			since = e.At.Add(-time.Minute)
		}
		printed = now
		select {
		case <-ctx.Done():
			return nil
		case <-each.C:
		}
	}
}

func eventLine(e policies.Event) string {
	state := "not delivered"
	switch {
	case !e.DeliveredAt.IsZero():
		state = "delivered"
	case e.Attempt >= policies.MaxAttempts:
		state = "given up"
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s%%\t%s of %s\t%s", cli.Moment(e.At), printable.Shown(e.Policy), printable.Shown(e.Key), cli.Units(e.Mark*100), cli.Units(e.Level), cli.Units(e.Limit), state)
}

func eventsText(all []policies.Event) string {
	if len(all) == 0 {
		return "no key has reached a mark: see pglimit policy set --marks\n"
	}
	var text strings.Builder
	fmt.Fprintln(&text, "AT\tPOLICY\tKEY\tMARK\tLEVEL\tDELIVERY")
	for _, e := range all {
		fmt.Fprintln(&text, eventLine(e))
	}
	return cli.Aligned(text.String())
}
