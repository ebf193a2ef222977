package decide

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/limiter"
)

func TestLinesSplit(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][2]string{
		"alice":           {"alice", ""},
		"  alice  ":       {"alice", ""},
		"alice 2":         {"alice", "2"},
		"alice \v 2 ":     {"alice", "2"},
		"alice 2 3":       {"alice", "2 3"},
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
	const input = "alice\r\n\nalice many\nalice 3\nbob 4\nalice 2"
	for json, want := range map[bool][]string{
		false: {"alice\tallowed: 3 of 4 remaining", "alice\tallowed: 0 of 4 remaining", "bob\tallowed: 0 of 4 remaining", "alice\tdenied (limit): "},
		true:  {`{"key":"alice","allowed":true,`, `{"key":"alice","allowed":true,`, `{"key":"bob","allowed":true,`, `{"key":"alice","allowed":false,`},
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
		if fmt.Sprint(err) != "1 lines could not be read" {
			t.Errorf("got %v", err)
		}
		bad := map[bool]string{
			false: "pglimit: line 3: invalid: cost \"many\" is not a number\n",
			true:  `{"error":"invalid: cost \"many\" is not a number","code":"usage","line":3}` + "\n",
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
