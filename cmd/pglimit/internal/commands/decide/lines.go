package decide

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

// allowLines runs allow for each line of standard input. A denial does not change
// the exit code.
func allowLines(cmd *cobra.Command, db *connect.Database, out *cli.Output, flags *policyflags.Flags) error {
	p, err := flags.Policy()
	if err != nil {
		return err
	}
	return db.WithLimiter(cmd, func(l *limiter.Limiter) error {
		return (&lines{cmd: cmd, out: out, limiter: l, policy: p, cost: flags.Cost}).run()
	})
}

// lines answers standard input line by line.
type lines struct {
	cmd     *cobra.Command
	out     *cli.Output
	limiter *limiter.Limiter
	policy  limiter.Policy
	cost    float64 // of a line without a cost
}

func (l *lines) run() error {
	in := bufio.NewReader(l.cmd.InOrStdin())
	var allowed, denied, bad int
	start := time.Now()
	for n := 1; ; n++ {
		line, readErr := in.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) != "" {
			r, key, err := l.decide(line)
			switch {
			case errors.Is(err, limiter.ErrInvalid):
				bad++
				fmt.Fprintf(l.cmd.ErrOrStderr(), "pglimit: line %d: %s\n", n, strings.TrimPrefix(err.Error(), "pglimit: "))
			case err != nil:
				return fmt.Errorf("line %d, after %d decisions: %w", n, allowed+denied, cli.LimiterError(err))
			case r.Allowed:
				allowed++
			default:
				denied++
			}
			if err == nil {
				if err := l.print(key, r); err != nil {
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
	fmt.Fprintf(l.cmd.ErrOrStderr(), "%d decisions in %v: %d allowed, %d denied\n",
		allowed+denied, time.Since(start).Round(time.Millisecond), allowed, denied)
	if bad > 0 {
		return fmt.Errorf("%d lines could not be read", bad)
	}
	return nil
}

// decide decides the request of a line.
func (l *lines) decide(line string) (r limiter.Result, key string, err error) {
	key, text := splitLine(line)
	cost := l.cost
	if text != "" {
		if cost, err = strconv.ParseFloat(text, 64); err != nil {
			return r, key, fmt.Errorf("%w: cost %q is not a number", limiter.ErrInvalid, text)
		}
	}
	r, err = l.limiter.AllowN(l.cmd.Context(), l.policy, key, cost)
	return r, key, err
}

// print writes a result as a line of text or of JSON.
func (l *lines) print(key string, r limiter.Result) error {
	w := l.cmd.OutOrStdout()
	if !l.out.JSON {
		_, err := fmt.Fprintf(w, "%s\t%s\n", replay.Shown(key), human.Decision(r))
		return err
	}
	return json.NewEncoder(w).Encode(keyResult{key, r})
}

// splitLine splits a line into key and cost; the cost may be missing.
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

// keyResult is a line's JSON.
type keyResult struct {
	Key string `json:"key"`
	limiter.Result
}

// MarshalJSON puts the key in front of the result's fields.
func (k keyResult) MarshalJSON() ([]byte, error) {
	result, err := json.Marshal(k.Result)
	if err != nil {
		return nil, err
	}
	key, err := json.Marshal(k.Key)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `{"key":%s,%s`, key, result[1:]), nil
}
