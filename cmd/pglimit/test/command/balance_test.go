package command

import (
	"strings"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

// TestCommandBalances: units that were granted are spent, refunded, shown and forgotten, and a
// grant counts once.
func TestCommandBalances(t *testing.T) {
	t.Parallel()
	database := testworld.NewDatabase(t)
	run := func(code int, want string, args ...string) {
		t.Helper()
		got, stdout, stderr := testworld.Pglimit(t, database, args...)
		if got != code || !strings.Contains(stdout+stderr, want) {
			t.Errorf("%s: exit code %d: %s%s; want %d and %s", args, got, stdout, stderr, code, want)
		}
	}
	run(0, "credits", "policy", "set", "credits", "--algorithm", "balance", "--overdraft", "5")
	run(2, "Overdraft", "policy", "set", "rate", "--limit", "5", "--period", "1h", "--overdraft", "5")
	run(0, "granted 100: 105 remaining", "grant", "--policy", "credits", "acme", "100", "--once", "a", "--source", "invoice 1")
	run(0, "as before", "grant", "--policy", "credits", "acme", "100", "--once", "a")
	run(0, "granted 20", "grant", "--policy", "credits", "acme", "20", "--expires", "30d", "--priority", "-1")
	run(0, "95 remaining", "allow", "--policy", "credits", "--cost", "30", "acme")
	run(1, "denied", "allow", "--policy", "credits", "--cost", "96", "acme")
	run(0, "", "policy", "set", "minutes", "--algorithm", "balance")
	run(0, "", "grant", "--policy", "minutes", "erin", "10", "--priority", "-1")
	run(0, "lot 1      10, priority -1", "usage", "--policy", "minutes", "erin")
	run(0, "", "allow", "--policy", "minutes", "--cost", "10", "erin")
	run(0, "minutes, balance: limited now\n  limit     prepaid units; in the database", "why", "erin") // also without a share
	run(0, "5 of 5 owed", "charge", "--policy", "credits", "--cost", "95", "acme")
	run(0, "gave back 95", "refund", "--policy", "credits", "--cost", "95", "acme")
	run(0, `lot 3      90`, "usage", "--policy", "credits", "acme")
	run(0, `"granted": 120,`, "usage", "--policy", "credits", "acme", "--json")
	run(0, "remaining  95, with an overdraft of 5", "usage", "--policy", "credits", "acme")
	run(0, "credits, balance: ok now\n  limit     prepaid units, and up to 5 owed; in the database", "why", "acme")
	run(0, "now       95 remaining, 0 of 5 owed", "why", "acme")
	run(0, "credits  balance", "find", "acme")
	run(2, "use a number", "grant", "--policy", "credits", "acme", "many")
	run(2, "Priority", "grant", "--policy", "credits", "acme", "1", "--priority", "9999")
	run(0, "reserved 7", "reserve", "--policy", "credits", "--cost", "7", "acme")
	run(0, "reserved   7 in 1 open reservation", "usage", "--policy", "credits", "acme")
	run(0, "granted 5", "grant", "bob", "5") // by flags
	run(2, `--expires is "soon": use a date`, "grant", "--policy", "credits", "acme", "5", "--expires", "soon")
	run(2, `units -5: must be from`, "grant", "--policy", "credits", "--", "acme", "-5")
	run(0, "gave 4: 84 remaining, 0 of 5 owed\n", "allow-any", "--policy", "credits", "--cost", "4", "acme")
	run(0, ": 77 remaining, 0 of 5 owed\n", "reserve", "--policy", "credits", "--cost", "7", "acme")
	run(0, `"reservations": 2,`, "find", "acme", "--json")
	run(0, "credits  balance    prepaid  5 owed\n", "policy", "list")
	run(0, "", "block", "--policy", "credits", "acme", "1h")
	run(1, "blocked", "allow", "--policy", "credits", "acme")
	run(0, "", "unblock", "--policy", "credits", "acme")
	run(0, "", "forget", "acme", "--yes")
	run(1, "denied", "allow", "--policy", "credits", "--cost", "6", "acme")
}

// TestCommandLedger: ledger lists what changed a balance, page by page, until forget.
func TestCommandLedger(t *testing.T) {
	t.Parallel()
	database := testworld.NewDatabase(t)
	run := func(code int, want string, args ...string) {
		t.Helper()
		got, stdout, stderr := testworld.Pglimit(t, database, args...)
		if got != code || !strings.Contains(stdout+stderr, want) {
			t.Errorf("%s: exit code %d: %s%s; want %d and %s", args, got, stdout, stderr, code, want)
		}
	}
	run(2, "Ledger", "policy", "set", "rate", "--limit", "5", "--period", "1h", "--ledger")
	run(0, "credits", "policy", "set", "credits", "--algorithm", "balance", "--ledger")
	run(0, "no entries", "ledger", "credits", "acme")
	run(0, "granted 100", "grant", "--policy", "credits", "acme", "100", "--source", "invoice 1", "--note", "paid by card")
	run(0, "70 remaining", "allow", "--policy", "credits", "--cost", "30", "--note", "order 1042", "acme")
	run(1, "denied", "allow", "--policy", "credits", "--cost", "71", "--note", "order 1043", "acme")
	run(0, `grant  +100   100   1: +100 "invoice 1"  paid by card`, "ledger", "credits", "acme")
	run(0, `"kind": "spend",`, "ledger", "credits", "acme", "--json", "--limit", "1")
	run(0, "no entries", "ledger", "credits", "acme", "--before", "1")
	run(2, "--limit 0", "ledger", "credits", "acme", "--limit", "0")
	run(2, "Note", "allow", "--policy", "credits", "--note", strings.Repeat("n", 256), "acme")
	run(0, "", "forget", "acme", "--yes")
	run(0, "no entries", "ledger", "credits", "acme")
}
