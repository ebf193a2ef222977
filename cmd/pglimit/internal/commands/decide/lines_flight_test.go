package decide

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/limiter"
)

// over returns lines of in that are decided by allow, and a command that writes to out.
func over(ctx context.Context, in io.Reader, out io.Writer, allow func(context.Context, string, float64) (limiter.Result, error)) *lines {
	cmd := &cobra.Command{}
	cmd.SetContext(ctx)
	cmd.SetIn(in)
	cmd.SetOut(out)
	cmd.SetErr(io.Discard)
	return &lines{cmd: cmd, out: &cli.Output{}, allow: allow, cost: 1}
}

// TestLinesInFlight: many lines are decided at once, up to the bound. The lines of one key
// are decided in order, and all are answered in order.
func TestLinesInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number = 3000
		random := rand.New(rand.NewPCG(1, 2))
		var input, want strings.Builder
		keys := map[string]int{}
		for range number {
			key := fmt.Sprintf("k%d", random.IntN(300))
			keys[key]++
			fmt.Fprintf(&input, "%s %d\n", key, keys[key])
			fmt.Fprintf(&want, "%s\tallowed: %d of 0 remaining, reset after 0s\n", key, keys[key])
		}
		var lock sync.Mutex
		flying, most := 0, 0
		seen := map[string]int{}
		allow := func(_ context.Context, key string, cost float64) (limiter.Result, error) {
			lock.Lock()
			flying++
			most = max(most, flying)
			if seen[key]++; seen[key] != int(cost) {
				t.Errorf("%s: line %v is decided as number %d of the key", key, cost, seen[key])
			}
			wait := time.Duration(random.IntN(1000)) * time.Millisecond
			lock.Unlock()
			time.Sleep(wait)
			lock.Lock()
			flying--
			lock.Unlock()
			return limiter.Result{Allowed: true, Remaining: cost}, nil
		}
		var out strings.Builder
		if err := over(t.Context(), strings.NewReader(input.String()), &out, allow).run(); err != nil || out.String() != want.String() {
			t.Errorf("%v: the answers differ: %.300s", err, &out)
		}
		if most < inFlight/4 || most > inFlight {
			t.Errorf("%d were in flight at most", most)
		}
		if flying != 0 {
			t.Errorf("%d are still in flight", flying)
		}
	})
}

// TestLinesOneByOne: a line is answered before the next one is written.
func TestLinesOneByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in, typed := io.Pipe()
		shown, out := io.Pipe()
		allow := func(context.Context, string, float64) (limiter.Result, error) {
			return limiter.Result{Allowed: true}, nil
		}
		ended := make(chan error)
		go func() { ended <- over(t.Context(), in, out, allow).run() }()
		answers := bufio.NewReader(shown)
		for _, key := range []string{"alice", "alice", "bob"} {
			fmt.Fprintln(typed, key)
			if got, err := answers.ReadString('\n'); err != nil || !strings.HasPrefix(got, key+"\tallowed") {
				t.Errorf("%s: got %q, %v", key, got, err)
			}
		}
		typed.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestLinesStop: an error or Ctrl-C ends the command while standard input is open. The
// answers before it are written, and no decision is left running.
func TestLinesStop(t *testing.T) {
	t.Parallel()
	broken := errors.New("the database is gone")
	for name, want := range map[string]error{"failed": broken, "interrupted": context.Canceled, "interrupted at a read": cli.ErrInterrupted} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			in, typed := io.Pipe()
			var running atomic.Int32
			var late atomic.Bool
			allow := func(ctx context.Context, key string, _ float64) (limiter.Result, error) {
				running.Add(1)
				defer running.Add(-1)
				if key == "bad" {
					synctest.Wait() // until the lines before it are answered
				}
				switch {
				case late.Load():
					t.Errorf("%s: %s is decided after the end", name, key)
				case key == "bad" && name == "failed":
					return limiter.Result{}, broken
				case key == "bad" && name == "interrupted":
					cancel()
					return limiter.Result{}, ctx.Err()
				case key == "slow":
					<-ctx.Done()
					return limiter.Result{}, ctx.Err()
				}
				return limiter.Result{Allowed: true}, nil
			}
			var out strings.Builder
			go func() {
				lines := "a\nb\nbad\nslow\nslow\n"
				if name == "interrupted at a read" {
					lines = "a\nb\n"
				}
				_, _ = io.WriteString(typed, lines)
			}()
			if name == "interrupted at a read" {
				go func() { synctest.Wait(); cancel() }()
			}
			err := over(ctx, cli.Interruptible(ctx, in), &out, allow).run()
			late.Store(true)
			if !errors.Is(err, want) || strings.Count(out.String(), "\n") != 2 || running.Load() != 0 {
				t.Errorf("%s: got %v, %q, %d running", name, err, &out, running.Load())
			}
			if name == "failed" && !strings.HasPrefix(err.Error(), "line 3, after 2 decisions (") {
				t.Errorf("got %v", err)
			}
			typed.Close()
			synctest.Wait()
		})
	}
}
