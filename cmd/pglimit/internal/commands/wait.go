package commands

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/limiter"
)

func newWait(db *connect.Database, out *cli.Output) *cobra.Command {
	flags := policyflags.Flags{Only: limiter.LeakyBucketQueue}
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait KEY",
		Short: "Queue a request, and sleep until its turn",
		Long: `Queue a request for --cost units of KEY, and sleep until its turn. Requests leave
the queue at the rate of the limit, in order of arrival, across all processes.
The algorithm is leaky_bucket_queue.

A request is denied immediately, without a place in the queue, if the queue is
full, the key is blocked, or its turn would come after --timeout. An interrupted
wait gives its place back if no request has queued behind it.

Exit code 0: the turn came; 1: denied; 130: interrupted by Ctrl-C.`,
		Example: `  pglimit wait --limit 10 --period 1s --burst 100 mail && sendmail …
  pglimit wait --limit 1 --period 1m --timeout 5m report`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout < 0 {
				return fmt.Errorf("--timeout is %s: use the longest time to wait, or 0 for no limit", duration.Format(timeout))
			}
			return wait(cmd, db, out, &flags, args[0], timeout)
		},
	}
	flags.RegisterRequest(cmd)
	flags.RegisterFloor(cmd)
	cli.DurationVar(cmd.Flags(), &timeout, "timeout", 0, "longest `time` to wait before a denial; 0: no limit")
	return cmd
}

// wait queues a request, waits for its turn and prints the result.
func wait(cmd *cobra.Command, db *connect.Database, out *cli.Output, flags *policyflags.Flags, key string, timeout time.Duration) error {
	// Wait returns no Result. Observe receives it as soon as the request has its
	// place in the queue, so the delay can be printed before it passes.
	var r limiter.Result
	config := &limiter.Config{
		Observe: func(_ context.Context, o limiter.Observation) {
			r = o.Result
			if o.Err == nil && r.Allowed && r.Delay > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "queued: the turn comes in %s\n", cli.Span(r.Delay))
			}
		},
	}
	return db.WithPolicy(cmd, flags, config, func(d connect.Decider) error {
		ctx := cmd.Context()
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		request, start := flags.Request(d.Policy, key), time.Now()
		queued, err := d.Limiter.DoWait(ctx, request)
		if err == nil {
			err = queued.Err()
		}
		took := time.Since(start).Round(time.Millisecond)
		switch denied := (*limiter.DeniedError)(nil); {
		case err == nil:
			return out.Answer(cmd, r.Allowed, r, fmt.Sprintf("allowed: waited %s, %s of %s remaining\n", duration.Format(took), cli.Units(r.Remaining), cli.Units(r.Burst)))
		case errors.As(err, &denied):
			text := cli.Decision(denied.Result) + cli.Floored(request, denied.Result)
			if timeout > 0 && denied.Result.Reason == limiter.ReasonLimit && denied.Result.RetryAfter != limiter.Never {
				text += fmt.Sprintf(" to get a turn within %s", duration.Format(timeout))
			}
			return out.Answer(cmd, false, denied.Result, text+"\n")
		case cmd.Context().Err() != nil:
			return fmt.Errorf("interrupted after %v; the place goes back unless a request queued behind it: %w", took, err)
		case ctx.Err() != nil && r.Allowed:
			// The turn came just before the deadline; its answer arrived after it.
			r.Allowed, r.Granted, r.Reason, r.RetryAfter = false, 0, limiter.ReasonLimit, 0
			return out.Answer(cmd, false, r, fmt.Sprintf("denied (limit): the turn did not come within %s\n", duration.Format(timeout)))
		case ctx.Err() != nil:
			return cli.DatabaseError(fmt.Errorf("no answer within --timeout %s: %w", duration.Format(timeout), err))
		}
		return cli.LimiterError(err)
	})
}
