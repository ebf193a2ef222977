package connect_test

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
	"github.com/pglimit/pglimit/internal/must"
)

// TestOpenCauses: the error of a connection has its causes first, each once with its
// addresses, and a next step, in JSON too, for every command.
func TestOpenCauses(t *testing.T) {
	t.Parallel()
	answers := func(text string) string {
		return "127.0.0.1:" + fakeServer(t, func(*pgproto3.Backend, *pgproto3.StartupMessage) string { return text })
	}
	silent := must.OK(net.Listen("tcp", "127.0.0.1:0"))(t) // it accepts no connection
	t.Cleanup(func() { silent.Close() })
	const cannot = ": cannot connect to database shop as app"
	starting, other := answers("57P03 the database system is starting up"), answers("57P03 the database system is starting up")
	password, none, full := answers("28P01 wrong"), answers(`3D000 database "shop" does not exist`), answers("53300 too many clients already")
	for _, c := range []struct{ address, text, next string }{
		{"postgres://app@127.0.0.1:1/shop", "connection refused at 127.0.0.1:1" + cannot, "start the server"},
		{"postgres://app@127.0.0.1:1,127.0.0.1:2/shop", "connection refused at 127.0.0.1:1 and 127.0.0.1:2" + cannot, "start the server"},
		{"postgres://app@" + starting + "/shop", "the database system is starting up (SQLSTATE 57P03) at " + starting + cannot, "wait until"},
		{"postgres://app@" + starting + "," + other + "/shop", "the database system is starting up (SQLSTATE 57P03) at " + starting + " and " + other + cannot, "wait until"},
		{"postgres://app@127.0.0.1:1," + password + "/shop", "connection refused at 127.0.0.1:1; wrong (SQLSTATE 28P01) at " + password + cannot, "correct the password"},
		{"postgres://app@" + none + "/shop?sslmode=disable", `database "shop" does not exist (SQLSTATE 3D000) at ` + none + cannot, "correct the database's name"},
		{"postgres://app@" + full + "/shop?sslmode=require", "the server refuses TLS at " + full + cannot, "turn ssl on"},
		{"postgres://app@" + full + "/shop", "too many clients already (SQLSTATE 53300) at " + full + cannot, "close connections"},
		{"host=/nowhere user=app dbname=shop", "no such socket at /nowhere/.s.PGSQL.5432" + cannot, "start the server"},
		{"postgres://app@" + silent.Addr().String() + "/shop?connect_timeout=1", "no answer in time at " + silent.Addr().String() + cannot, "check the host"},
	} {
		for _, args := range []string{"doctor", "migrate status", "allow --limit 1 k", "top --once", "janitor --once"} {
			if strings.Contains(c.address, "timeout") && args != "doctor" {
				continue // it takes its time
			}
			code, stdout, stderr := commandtest.Call(t, append(strings.Fields(args), "--json", "--database-url", c.address)...)
			var got cli.Failure
			if err := json.Unmarshal([]byte(stderr), &got); err != nil || code != cli.ExitDatabase || stdout != "" || got.Message != c.text || !strings.HasPrefix(got.NextStep, c.next) {
				t.Errorf("%s: %s: exit code %d, %v, %s", args, c.address, code, err, stderr)
			}
		}
	}
	if _, _, stderr := commandtest.Call(t, "doctor", "--database-url", "postgres://app@127.0.0.1:1/shop"); stderr !=
		"pglimit: connection refused at 127.0.0.1:1"+cannot+"; start the server, or correct the host and the port in DATABASE_URL\n" {
		t.Error(stderr)
	}
}
