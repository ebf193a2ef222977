package commands

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/prove"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/prove/contest"
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
		Plans:     prove.Part{Keys: 1, Admitted: 3, Allowed: 4},
		Held:      prove.Held{Part: prove.Part{Keys: 2}, Rows: 6, Meanwhile: 7, Stalls: 8},
		Exceeded:  []contest.Excess{{Key: "a", Policy: minute, Admitted: 9, Allowed: 8}},
		Faults:    []contest.Fault{{Key: "b", Policy: month, Fault: "another level"}},
		Reserved:  &prove.Reserved{Part: prove.Part{Keys: 2}, Made: 5, Settled: 3, Cancelled: 1, LeftOpen: 1},
	}}}
	text := proofText(r)
	for _, want := range []string{
		"gcra  ", "\n8 workers on 4 pools for 2.0 s, through a pooler: PgBouncer; 3 connections ended by the server\n",
		"\nplans in turn: 1 key, admitted 3 of 4\n", "\nrows locked: 2 keys, admitted 0 of 0; 6 times, and 7 requests for other keys answered meanwhile\n",
		"\nwhole ticks: 0 ", "\naligned windows: 0 ", "\ncalendars: 0 ", "\nAllowAll: 0 ",
		"\nreservations: 2 keys, admitted 0 of 0 at one time; 5 made, 3 settled, 1 cancelled, 1 left open, 0 settled late\n",
		"\nEXCEEDED: gcra, key a: admitted 9 of 8 (limit 5 per 1m)\n",
		"\nWRONG: gcra, key b (limit 5 per month in Europe/Vienna): another level\n",
		"\nSTALLED: gcra: no other key was answered while a row was locked, 8 times; give the pooler more connections\n",
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
