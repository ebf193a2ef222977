package commands

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/prove"
	"github.com/pglimit/pglimit/limiter"
)

// TestProofText: the text has the kinds of keys, and a line for each key and algorithm that
// failed.
func TestProofText(t *testing.T) {
	t.Parallel()
	minute := limiter.Policy{Limit: 5, Period: time.Minute}
	month := limiter.Policy{Limit: 5, Calendar: limiter.Month, TimeZone: "Europe/Vienna"}
	r := prove.Report{Took: 2, Workers: 8, Pools: 4, Pooler: true, Through: "PgBouncer", Killed: 3, Algorithms: []prove.Algorithm{{
		Algorithm: limiter.GCRA,
		Kinds:     []prove.Part{{Kind: prove.Cold, Keys: 9}, {Kind: prove.Plans, Keys: 1, Admitted: 3, Allowed: 4}},
		Exceeded:  []prove.Excess{{Key: "a", Policy: minute, Admitted: 9, Allowed: 8}},
		Faults:    []prove.Fault{{Key: "b", Policy: month, Fault: "another level"}},
	}, {Algorithm: limiter.TokenBucket, Kinds: []prove.Part{{Kind: prove.Plans, Keys: 2, Admitted: 1, Allowed: 5}}}}}
	text := proofText(r)
	for _, want := range []string{
		"gcra  ", "\n8 workers on 4 pools for 2.0 s, through a pooler: PgBouncer; 3 connections ended by the server\n",
		"\nplans in turn: 3 keys, admitted 4 of 9\n",
		"\nwhole ticks: 0 ", "\naligned windows: 0 ", "\ncalendars: 0 ", "\nAllowAll: 0 ",
		"\nEXCEEDED: gcra, key a: admitted 9 of 8 (limit 5 per 1m)\n",
		"\nWRONG: gcra, key b (limit 5 per month Europe/Vienna): another level\n",
		"\nIt does not hold. Please report this",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if text := proofText(prove.Report{Holds: true}); !strings.HasSuffix(text, "\nIt holds: no key was admitted more than its policy allows.\n") {
		t.Errorf("got %s", text)
	}
}
