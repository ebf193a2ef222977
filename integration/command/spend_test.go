package command

import (
	"regexp"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

// TestCommandSpend runs reserve, settle, cancel and usage one after the other, as JSON and
// as text, and checks their output.
func TestCommandSpend(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
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
  "window_ends": "TIME"`},
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
		{"settle ID x", 2, `UNITS is "x": use a number, such as 180`},
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
		code, stdout, stderr := bed.Pglimit(t, address, strings.Fields(strings.ReplaceAll(c.args, "ID", id))...)
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
