package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/human"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/internal/replay"
	"github.com/pglimit/pglimit/limiter"
)

func newAllow(a *app) *cobra.Command {
	var flags policyflags.Flags
	cmd := &cobra.Command{
		Use:   "allow KEY|-",
		Short: "Ask whether a key may go on, and count it if so",
		Long: `Ask whether KEY may go on, and count it if so.

With - for KEY, each line of standard input is a key and, after white space, a
cost (default --cost); with a tab in the line the key is all before the last
one, spaces included. Each line is answered by a line, in order. A line that
cannot be read is told on stderr and passed over; the exit code is then 2.

Exit code 0: allowed (with -: done); 1: denied. ` + connect.KeySecretEnv + ` is the secret
that keys are hashed with, if the application has one.`,
		Example: `  pglimit allow --limit 10 --period 1m alice && echo go on
  pglimit allow --algorithm gcra --limit 100 --period 1h --burst 20 --cost 5 alice --json
  pglimit allow --limit 1000 --calendar month --time-zone Europe/Vienna alice
  cut -d' ' -f1 access.log | pglimit allow --limit 60 --period 1m - | sort | uniq -c`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := flags.Policy()
			if err != nil {
				return err
			}
			pool, err := a.db.Open(cmd)
			if err != nil {
				return err
			}
			defer pool.Close()
			l, err := connect.NewLimiter(pool)
			if err != nil {
				return err
			}
			if args[0] == "-" {
				return a.allowLines(cmd, l, p, flags.Cost)
			}
			r, err := l.AllowN(cmd.Context(), p, args[0], flags.Cost)
			if err != nil {
				return cli.LimiterError(err)
			}
			return a.out.Answer(cmd, r.Allowed, r, human.Decision(r)+"\n")
		},
	}
	flags.RegisterRequest(cmd)
	return cmd
}

// decision is a line of allow -'s JSON.
type decision struct {
	Key string `json:"key"`
	limiter.Result
}

// MarshalJSON puts the key in front of the result.
func (d decision) MarshalJSON() ([]byte, error) {
	result, err := json.Marshal(d.Result)
	if err != nil {
		return nil, err
	}
	key, err := json.Marshal(d.Key)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `{"key":%s,%s`, key, result[1:]), nil
}

// allowLines decides line by line.
func (a *app) allowLines(cmd *cobra.Command, l *limiter.Limiter, p limiter.Policy, cost float64) error {
	in := bufio.NewReader(cmd.InOrStdin())
	var allowed, denied, bad int
	start := time.Now()
	for n := 1; ; n++ {
		line, readErr := in.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) != "" {
			r, key, err := a.allowLine(cmd, l, p, line, cost)
			switch {
			case errors.Is(err, limiter.ErrInvalid):
				bad++
				fmt.Fprintf(cmd.ErrOrStderr(), "pglimit: line %d: %s\n", n, strings.TrimPrefix(err.Error(), "pglimit: "))
			case err != nil:
				return fmt.Errorf("line %d, after %d decisions: %w", n, allowed+denied, cli.LimiterError(err))
			case r.Allowed:
				allowed++
			default:
				denied++
			}
			if err == nil {
				if err := a.printLine(cmd.OutOrStdout(), key, r); err != nil {
					return err
				}
			}
		}
		if readErr == io.EOF {
			break
		}
		if readErr != nil {
			return fmt.Errorf("standard input: %w", readErr)
		}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%d decisions in %v: %d allowed, %d denied\n",
		allowed+denied, time.Since(start).Round(time.Millisecond), allowed, denied)
	if bad > 0 {
		return fmt.Errorf("%d lines could not be read", bad)
	}
	return nil
}

func (a *app) allowLine(cmd *cobra.Command, l *limiter.Limiter, p limiter.Policy, line string, cost float64) (limiter.Result, string, error) {
	key, text := splitLine(line)
	if text != "" {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return limiter.Result{}, key, fmt.Errorf("%w: cost %q is no number", limiter.ErrInvalid, text)
		}
		cost = n
	}
	r, err := l.AllowN(cmd.Context(), p, key, cost)
	return r, key, err
}

// splitLine takes a line apart into key and cost; the cost may be missing.
func splitLine(line string) (key, cost string) {
	if i := strings.LastIndexByte(line, '\t'); i >= 0 {
		return line[:i], strings.TrimSpace(line[i+1:])
	}
	line = strings.TrimSpace(line)
	if i := strings.IndexAny(line, " \v\f"); i >= 0 {
		return line[:i], strings.TrimSpace(line[i:])
	}
	return line, ""
}

func (a *app) printLine(w io.Writer, key string, r limiter.Result) error {
	if !a.out.JSON {
		_, err := fmt.Fprintf(w, "%s\t%s\n", replay.Shown(key), human.Decision(r))
		return err
	}
	return json.NewEncoder(w).Encode(decision{key, r})
}
