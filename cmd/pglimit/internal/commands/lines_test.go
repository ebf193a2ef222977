package commands

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
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

// TestLinesSplit: a cost follows the last tab only, so a key may have spaces and numbers.
func TestLinesSplit(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][2]string{
		"alice":           {"alice", ""},
		"  alice  ":       {"  alice  ", ""},
		"Mozilla 1e-8":    {"Mozilla 1e-8", ""},
		"alice \v 2 ":     {"alice \v 2 ", ""},
		"Mozilla\t1e-8\t": {"Mozilla\t1e-8", ""},
		"two words\t2":    {"two words", "2"},
		" spaces \t":      {" spaces ", ""},
		"a\ttab in it\t2": {"a\ttab in it", "2"},
	} {
		if key, cost := splitLine(line); [2]string{key, cost} != want {
			t.Errorf("%q: got %q and %q, want %q", line, key, cost, want)
		}
	}
}

// TestLinesRun: each request gets one line of output. A bad line gets a message
// and an error at the end; a blank line is ignored.
func TestLinesRun(t *testing.T) {
	t.Parallel()
	const input = "\ufeffalice\r\n\nalice\tmany\nalice\t3\nbob\u009b 0.1\t4\nalice\t2"
	for json, want := range map[bool][]string{
		false: {"alice\tallowed: 3 of 4 remaining", "alice\tallowed: 0 of 4 remaining", `"bob\u009b 0.1"` + "\tallowed: 0 of 4 remaining", "alice\tdenied (limit): "},
		true:  {`{"key":"alice","allowed":true,`, `{"key":"alice","allowed":true,`, `{"key":"bob\u009b 0.1","allowed":true,`, `{"key":"alice","allowed":false,`},
	} {
		l := limiter.NewMemory(nil)
		defer l.Close()
		var stdout, stderr strings.Builder
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetIn(strings.NewReader(input))
		cmd.SetOut(&stdout)
		cmd.SetErr(&stderr)
		p := limiter.Policy{Name: "lines", Algorithm: limiter.FixedWindow, Limit: 4, Period: 24 * time.Hour}
		allow := func(ctx context.Context, key string, cost float64) (limiter.Result, error) {
			return l.AllowN(ctx, p, key, cost)
		}
		err := (&lines{cmd: cmd, out: &cli.Output{JSON: json}, allow: allow, cost: 1}).run()
		if fmt.Sprint(err) != "1 line could not be read" {
			t.Errorf("got %v", err)
		}
		bad := map[bool]string{
			false: "pglimit: line 3: invalid: cost is \"many\": use a number, such as 10 or 2.5\n",
			true:  `{"error":"invalid: cost is \"many\": use a number, such as 10 or 2.5","code":"usage","line":3}` + "\n",
		}[json]
		if text := stderr.String(); !strings.HasPrefix(text, bad) ||
			!strings.Contains(text, "\n4 decisions in ") || !strings.HasSuffix(text, ": 3 allowed, 1 denied\n") {
			t.Errorf("stderr: %q", text)
		}
		got := strings.Split(strings.TrimSuffix(stdout.String(), "\n"), "\n")
		if len(got) != len(want) {
			t.Fatalf("got %q", got)
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("line %d: got %q, want %q at its start", i+1, got[i], want[i])
			}
		}
	}
}

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
			fmt.Fprintf(&input, "%s\t%d\n", key, keys[key])
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

// FuzzSplitLine: a line with a tab gives the key and the cost that were put into it, and a
// line without one is a key.
func FuzzSplitLine(f *testing.F) {
	for _, key := range []string{"", "k", "a b", "a\tb", " ", "\xff", "a\v2", "192.0.2.7 2", "a  2", "a \v 2 "} {
		for _, cost := range []string{"", "2", " 2 ", "1e3", "x"} {
			f.Add(key, cost)
		}
	}
	f.Fuzz(func(t *testing.T, key, cost string) {
		if strings.ContainsAny(key+cost, "\n") || strings.Contains(cost, "\t") {
			return
		}
		if gotKey, gotCost := splitLine(key + "\t" + cost); gotKey != key || gotCost != strings.TrimSpace(cost) {
			t.Errorf("%q and %q are read as %q and %q", key, cost, gotKey, gotCost)
		}
		if gotKey, gotCost := splitLine(key); !strings.Contains(key, "\t") && (gotKey != key || gotCost != "") {
			t.Errorf("%q is read as %q and %q", key, gotKey, gotCost)
		}
	})
}

// FuzzLine: a line with a tab has the key and the cost that were put into it, a line
// without a cost has the flag's, and any other cost is ErrInvalid and named.
func FuzzLine(f *testing.F) {
	for _, key := range []string{"k", "a b", "a\tb", "192.0.2.7"} {
		for _, cost := range []string{"", "2", " 2 ", "1e3", "x", "NaN", "-Inf", "0x1p-2", "1_000", "1e999", "２"} {
			f.Add(key, cost)
		}
	}
	f.Fuzz(func(t *testing.T, key, cost string) {
		if strings.ContainsAny(key+cost, "\n") || strings.Contains(cost, "\t") {
			return
		}
		l := lines{cost: 7}
		got, units, err := l.parse(key + "\t" + cost)
		if got != key {
			t.Errorf("%q and %q: the key %q", key, cost, got)
		}
		cost = strings.TrimSpace(cost)
		want, wrong := cli.ParseUnits(cost)
		switch {
		case cost == "":
			if units != 7 || err != nil {
				t.Errorf("%q without a cost: %v, %v", key, units, err)
			}
		case wrong != nil:
			if !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), strconv.Quote(cost)) {
				t.Errorf("%q and %q: %v", key, cost, err)
			}
		case err != nil || units != want && want == want:
			t.Errorf("%q and %q: %v, %v", key, cost, units, err)
		}
	})
}
