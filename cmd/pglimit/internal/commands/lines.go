package commands

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

// inFlight is the most lines that are decided at once. The limiter sends their requests
// together.
const inFlight = 256

// allowLines runs allow for each line of standard input. A denial does not change
// the exit code.
func allowLines(cmd *cobra.Command, db *connect.Database, out *cli.Output, flags *policyflags.Flags) error {
	return db.WithPolicy(cmd, flags, nil, func(d connect.Decider) error {
		allow := func(ctx context.Context, key string, cost float64) (limiter.Result, error) {
			return d.Limiter.Do(ctx, limiter.Request{Policy: d.Current(), Key: key, Cost: cost, Floor: flags.Floor, Note: flags.Note})
		}
		return (&lines{cmd: cmd, out: out, allow: allow, cost: flags.Cost}).run()
	})
}

// lines answers standard input line by line, in order. It decides up to inFlight lines at
// once, but those of one key one after the other, so that every answer is the one that a
// single caller would get.
type lines struct {
	cmd   *cobra.Command
	out   *cli.Output
	allow func(ctx context.Context, key string, cost float64) (limiter.Result, error)
	cost  float64 // of a line without a cost

	allowed, denied, bad int
}

// line is a line of standard input, with its answer once done is closed.
type line struct {
	number int
	text   string
	err    error // of reading; it is the last line

	key    string
	done   chan struct{}
	result limiter.Result
	failed error
}

func (l *lines) run() error {
	ctx, stop := context.WithCancel(l.cmd.Context())
	var deciding sync.WaitGroup
	defer deciding.Wait() // before the caller closes the limiter
	defer stop()
	returned := make(chan struct{})
	defer close(returned)
	start := time.Now()
	input := l.read(returned)
	var queue []*line            // decided or being decided, in the order of the input
	newest := map[string]*line{} // in queue, by key
	var ended error              // of reading
	for {
		next, first := input, (<-chan struct{})(nil)
		if len(queue) >= inFlight {
			next = nil
		}
		if len(queue) > 0 {
			first = queue[0].done
		}
		if input == nil && len(queue) == 0 {
			break
		}
		select {
		case one := <-next:
			if one.err != nil {
				input, ended = nil, one.err
				continue
			}
			key, cost, err := l.parse(one.text)
			one.key, one.done = key, make(chan struct{})
			if queue = append(queue, one); err != nil {
				one.failed = err
				close(one.done)
				continue
			}
			before := newest[key]
			newest[key] = one
			deciding.Go(func() {
				defer close(one.done)
				if before != nil {
					<-before.done
				}
				if one.failed = ctx.Err(); one.failed == nil {
					one.result, one.failed = l.allow(ctx, key, cost)
				}
			})
		case <-first:
			one := queue[0]
			queue = queue[1:]
			if newest[one.key] == one {
				delete(newest, one.key)
			}
			if err := l.answer(one); err != nil {
				return err
			}
		}
	}
	if ended != io.EOF {
		return fmt.Errorf("standard input: %w", ended)
	}
	fmt.Fprintf(l.cmd.ErrOrStderr(), "%s in %v: %d allowed, %d denied\n",
		printable.Count(l.allowed+l.denied, "decision"), time.Since(start).Round(time.Millisecond), l.allowed, l.denied)
	if l.bad > 0 {
		return fmt.Errorf("%s could not be read", printable.Count(l.bad, "line"))
	}
	return nil
}

// read sends the lines of standard input that are not empty, each as soon as it can be
// read, and then one with the error, which Ctrl-C causes too. It ends when stop is closed.
func (l *lines) read(stop <-chan struct{}) <-chan *line {
	input := make(chan *line)
	send := func(one *line) bool {
		select {
		case input <- one:
			return true
		case <-stop:
			return false
		}
	}
	go func() {
		in := bufio.NewReader(l.cmd.InOrStdin())
		for n := 1; ; n++ {
			text, err := in.ReadString('\n')
			text = strings.TrimRight(text, "\r\n")
			if n == 1 {
				text = strings.TrimPrefix(text, "\ufeff") // a byte order mark
			}
			if strings.TrimSpace(text) != "" && !send(&line{number: n, text: text}) {
				return
			}
			if err != nil {
				send(&line{err: err})
				return
			}
		}
	}()
	return input
}

// parse returns the key and the cost of a line.
func (l *lines) parse(text string) (key string, cost float64, err error) {
	key, number := splitLine(text)
	if cost = l.cost; number != "" {
		if cost, err = cli.ParseUnits(number); err != nil {
			err = fmt.Errorf("%w: cost is %.80q: %w", limiter.ErrInvalid, number, err)
		}
	}
	return key, cost, err
}

// answer writes the answer of a line, or the error of one that cannot be read. It returns
// an error that ends the command.
func (l *lines) answer(one *line) error {
	switch {
	case errors.Is(one.failed, limiter.ErrInvalid):
		l.bad++
		l.out.BadLine(l.cmd, one.number, one.failed)
		return nil
	case one.failed != nil:
		return fmt.Errorf("line %d, after %s (up to %d lines after it may have been decided too): %w",
			one.number, printable.Count(l.allowed+l.denied, "decision"), inFlight-1, cli.LimiterError(one.failed))
	case one.result.Allowed:
		l.allowed++
	default:
		l.denied++
	}
	return l.print(one.key, one.result)
}

// print writes a result as a line of text or of JSON.
func (l *lines) print(key string, r limiter.Result) error {
	w := l.cmd.OutOrStdout()
	if !l.out.JSON {
		_, err := fmt.Fprintf(w, "%s\t%s\n", printable.Shown(key), cli.Decision(r))
		return err
	}
	return cli.WriteJSON(w, keyResult{key, r}, "")
}

// splitLine splits a line at its last tab into key and cost. Without a tab all of it is the
// key: a client's key may have spaces and numbers.
func splitLine(line string) (key, cost string) {
	if i := strings.LastIndexByte(line, '\t'); i >= 0 {
		return line[:i], strings.TrimSpace(line[i+1:])
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
