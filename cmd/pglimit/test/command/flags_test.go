// Package command tests pglimit, the command, over a real PostgreSQL server.
package command

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

func TestMain(m *testing.M) {
	testworld.BeCommand(commands.Main)
	testworld.Main(m, 2)
}

// TestCommandsMeanOneRow: without --algorithm, and with --calendar alone, the verbs of one
// key use the same row.
func TestCommandsMeanOneRow(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	for _, policy := range []string{"--limit 10 --period 1000h", "--limit 10 --calendar month --policy month", "--limit 10 --period 1000h --aligned --policy aligned"} {
		request := func(into any, verb string) {
			t.Helper()
			testworld.PglimitJSON(t, into, address, append([]string{verb, "alice"}, strings.Fields(policy)...)...)
		}
		request(new(any), "allow")
		request(new(any), "reserve")
		request(new(any), "charge")
		var checked any
		request(&checked, "check")
		var s any
		request(&s, "usage")
		// A bucket has leaked a little meanwhile.
		got := s.(map[string]any)
		spent, left := got["spent"].(float64), got["remaining"].(float64)
		if spent < 1.5 || spent > 2 || left < 7 || left > 7.5 || got["reserved"].(float64) != 1 {
			t.Errorf("%s: allowed 1, filled 1 and reserved 1; the statement says %v", policy, got)
		}
	}
}

// TestCommandFloor: each command that requests units leaves --floor of the limit free.
func TestCommandFloor(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	for verb, flags := range map[string]string{"allow": "", "reserve": "", "wait": "--algorithm leaky_bucket_queue"} {
		line := strings.Fields("--limit 10 --period 1000h --cost 8 --policy " + verb + " " + flags)
		for _, c := range []struct {
			floor string
			code  int
		}{{"0.3", 1}, {"0.2", 0}, {"1", 2}} {
			args := append([]string{verb, "alice", "--floor", c.floor, "--timeout", "1s"}, line...)
			if verb != "wait" {
				args = append(args[:4], line...)
			}
			if code, out, stderr := testworld.Pglimit(t, address, args...); code != c.code || code == 2 && !strings.Contains(stderr, "Floor 1") {
				t.Errorf("%v: exit code %d, %s%s", args, code, out, stderr)
			}
		}
	}
	testworld.Pglimit(t, address, strings.Fields("policy set pool --limit 10 --period 1000h")...)
	for floors, code := range map[string]int{"--floor 0.95": 1, "--floor 0,0.95": 1, "--floor 0,0.5": 0, "--floor 0,0,0": 2} {
		if got, out, stderr := testworld.Pglimit(t, address, append([]string{"allow-all", "a", "b", "--policy", "pool"}, strings.Fields(floors)...)...); got != code {
			t.Errorf("%s: exit code %d, %s%s", floors, got, out, stderr)
		}
	}
	many := testworld.Command(t, address, strings.Fields("allow - --policy many --limit 10 --period 1000h --floor 0.7")...)
	many.Stdin = strings.NewReader(strings.Repeat("alice\n", 6))
	if code, out, stderr := testworld.RunCommand(t, many); code != 0 || strings.Count(out, "allowed") != 3 {
		t.Errorf("lines: exit code %d, %s%s", code, out, stderr)
	}
}

// TestCommandDurability: the flag reaches the commit, and Durable is the default, on a
// database whose default would not wait for the disk.
func TestCommandDurability(t *testing.T) {
	t.Parallel()
	c := testworld.NewCommitLog(t)
	testworld.Exec(t, c.Pool, "ALTER DATABASE "+testworld.Value[string](t, c.Pool, "SELECT current_database()")+" SET synchronous_commit = off")
	for flags, want := range map[string]string{"": "on", " --durability durable": "on", " --durability relaxed": "off"} {
		p := limiter.Policy{Name: "cli" + strings.ReplaceAll(flags, " ", "-")}
		for _, line := range []string{"allow allow", "charge charge", "refund charge", "check check", "wait --algorithm leaky_bucket_queue wait"} {
			if code, _, stderr := testworld.Pglimit(t, c.URL, strings.Fields(line+flags+" --limit 10 --period 1000h --policy "+p.Name)...); code != 0 {
				t.Errorf("%s%s: exit code %d, %s", line, flags, code, stderr)
			}
		}
		c.Expect(t, p, want, map[string]int{"allow": 1, "charge": 2, "wait": 1})
	}
}

// TestCommandCalendar uses --calendar with allow, and replays a log in memory and in SQL.
func TestCommandCalendar(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	flags := strings.Fields("--algorithm fixed_window --limit 1000 --calendar month --time-zone Europe/Vienna --json")
	var answers [2]struct {
		Allowed   bool
		Remaining float64
	}
	for i := range answers {
		code, stdout, stderr := testworld.Pglimit(t, address, append([]string{"allow", "alice", "--cost", "600"}, flags...)...)
		if err := json.Unmarshal([]byte(stdout), &answers[i]); err != nil || code != i {
			t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
		}
	}
	if a := answers; !a[0].Allowed || a[0].Remaining != 400 || a[1].Allowed {
		t.Errorf("got %+v", a)
	}
	ends := testworld.Value[time.Time](t, testworld.Connect(t, address), "SELECT ends_at FROM pglimit_fixed_window_now")
	vienna := must.OK(time.LoadLocation("Europe/Vienna"))(t)
	if local := ends.In(vienna); local.Day() != 1 || local.Hour() != 0 || local.Minute() != 0 {
		t.Errorf("the month ends at %v", local)
	}

	log := logFile(t, "access.log", invented(1000, 10))
	args := []string{"replay", "--algorithm", "fixed_window", "--limit", "5", "--calendar", "hour", "--time-zone", "Asia/Kathmandu", log}
	code, inMemory, stderr := testworld.Pglimit(t, "", args...)
	if code != 0 || !strings.HasPrefix(inMemory, "fixed_window, 5 per hour (Asia/Kathmandu): ") {
		t.Fatalf("exit code %d: %s%s", code, inMemory, stderr)
	}
	if code, inSQL, stderr := testworld.Pglimit(t, "", append(args, "--database-url", address)...); code != 0 || inSQL != inMemory {
		t.Errorf("by SQL, exit code %d: %s\nin memory: %s\n%s", code, inSQL, inMemory, stderr)
	}
}

// TestCommandSpend runs reserve, settle, cancel and usage one after the other, as JSON and
// as text, and checks their output.
func TestCommandSpend(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	const budget = " --algorithm fixed_window --limit 1000000000000 --period 1000h k"
	moment := regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-][\d:]+)`)
	id := ""
	for _, c := range []struct {
		args string
		code int
		want string // in stdout, or in stderr; ID and TIME stand for the real ones
	}{
		{"usage" + budget, 0, "spent      0\nreserved   0 in 0 open reservations\nremaining  1000000000000 of 1000000000000\n"},
		{"reserve --cost 999999999999" + budget, 0, "reserved 999999999999 until TIME as ID: 1 of 1000000000000 remaining\n"},
		{"reserve --cost 2" + budget, 1, "denied (limit): retry after "},
		{"usage" + budget, 0, "spent      0\nreserved   999999999999 in 1 open reservation\nremaining  1 of 1000000000000\nuntil      TIME\n"},
		{"usage --json" + budget, 0, `"spent": 0,
  "reserved": 999999999999,
  "reservations": 1,
  "remaining": 1,
  "limit": 1000000000000,
  "burst": 1000000000000,
  "window_ends_at": "TIME"`},
		{"settle ID 1000000000000", 0, "settled with 1000000000000: 0 of 1000000000000 remaining\n"},
		{"settle ID 1000000000000", 0, "settled with 1000000000000: 0 of 1000000000000 remaining; it was settled before\n"},
		{"settle ID 1", 1, "nothing to settle: the reservation has ended: it was settled, with 1000000000000 of its 999999999999 units\n"},
		{"settle ID 1 --json", 1, `"found": true,
  "ended": true,
  "message": "the reservation has ended: it was settled, with `},
		{"cancel ID", 1, "nothing to cancel: the reservation has ended: it was settled"},
		{"allow" + budget, 1, "denied (limit)"},
		{"reset --algorithm fixed_window k", 0, "k"},
		{"reserve --cost 10 --idempotency-key stream-1" + budget, 0, "reserved 10 until TIME as ID: 999999999990 of 1000000000000 remaining\n"},
		{"reserve --cost 10 --idempotency-key stream-1 --json" + budget, 0, `"replayed": true`},
		{"reserve --cost 11 --idempotency-key stream-1" + budget, 2, `IdempotencyKey "stream-1": was used with cost 10, now with 11`},
		{"cancel ID", 0, "cancelled ID\n"},
		{"cancel ID --json", 0, `"verb": "cancel"`},
		{"settle ID 10", 1, "nothing to settle: the reservation has ended: it was cancelled"},
		{"usage" + budget, 0, "remaining  1000000000000 of 1000000000000\n"},
		{"settle ID x", 2, `UNITS is "x": use a number, such as 10 or 2.5`},
		{"settle fixed_window:AAAAAAAAAAAAAAAAAAAAAAAAAA:p:aw 1", 1, "nothing to settle: no such reservation: "},
		{"cancel fixed_window:AAAAAAAAAAAAAAAAAAAAAAAAAA:p:aw", 1, "nothing to cancel: no such reservation: "},
		{"cancel fixed_window:AAAAAAAAAAAAAAAAAAAAAAAAAA:p:aw --json", 1, `"verb": "cancel",
  "id": "fixed_window:AAAAAAAAAAAAAAAAAAAAAAAAAA:p:aw",
  "found": false,
  "ended": false,
  "message": "no such reservation: `},
		{"settle x 1", 2, `reservation "x"`},
		{"cancel fixed_window:A:p:aw", 2, "reservation"},
		{"settle fixed_window:AAAAAAAAAAAAAAAAAAAAAAAAAA:p:aw -- -1", 2, "-1"},
		{"reserve --ttl 10ms" + budget, 2, "ttl 10ms: must be whole microseconds from one second"},
	} {
		code, stdout, stderr := testworld.Pglimit(t, address, strings.Fields(strings.ReplaceAll(c.args, "ID", id))...)
		if strings.HasPrefix(c.want, "reserved ") {
			id = regexp.MustCompile(`fixed_window:[A-Z2-7]{26}:[a-z]+:[0-9A-Za-z_-]+`).FindString(stdout)
		}
		got := stdout
		if code == 2 {
			got = stderr
		}
		if id != "" {
			got = strings.ReplaceAll(got, id, "ID")
		}
		got = moment.ReplaceAllString(got, "TIME")
		if code != c.code || !strings.Contains(got, c.want) {
			t.Errorf("pglimit %s: exit code %d, want %d; got\n%s\nwant\n%s", c.args, code, c.code, got, c.want)
		}
	}
}
