package connect_test

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
	"github.com/pglimit/pglimit/internal/must"
)

// fakeServer answers the start of every connection, once that of TLS is refused, by refuse.
// It returns its port.
func fakeServer(t *testing.T, refuse func(*pgproto3.Backend, *pgproto3.StartupMessage) string) (port string) {
	t.Helper()
	listener := must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				backend := pgproto3.NewBackend(conn, conn)
				for {
					message, err := backend.ReceiveStartupMessage()
					if err != nil {
						return
					}
					if startup, ok := message.(*pgproto3.StartupMessage); ok {
						code, text, _ := strings.Cut(refuse(backend, startup), " ")
						backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: text})
						_ = backend.Flush() // the client may have gone
						return
					}
					_, _ = conn.Write([]byte("N")) // no TLS
				}
			}()
		}
	}()
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return port
}

// refuse refuses like PostgreSQL: it quotes a parameter that it does not know, or the user.
func refuse(_ *pgproto3.Backend, startup *pgproto3.StartupMessage) string {
	for name := range startup.Parameters {
		if !slices.Contains([]string{"user", "database", "application_name"}, name) {
			return fmt.Sprintf("42704 unrecognized configuration parameter %q", name)
		}
	}
	return fmt.Sprintf("28P01 password authentication failed for user %q", startup.Parameters["user"])
}

// quote asks for the password in clear and quotes it in its refusal.
func quote(backend *pgproto3.Backend, _ *pgproto3.StartupMessage) string {
	backend.Send(&pgproto3.AuthenticationCleartextPassword{})
	_ = backend.Flush()
	_ = backend.SetAuthType(pgproto3.AuthTypeCleartextPassword)
	answer, _ := backend.Receive()
	password, ok := answer.(*pgproto3.PasswordMessage)
	if !ok {
		return "08P01 no password"
	}
	return fmt.Sprintf("28P01 no %q, %s or %s", password.Password, password.Password, url.QueryEscape(password.Password))
}

// TestOpenOddPasswords: no part of a password appears on stderr, whatever it does to the
// syntax of the connection string, and even if a server quotes what it was sent.
func TestOpenOddPasswords(t *testing.T) {
	port := fakeServer(t, refuse)
	t.Setenv("PGHOST", "127.0.0.1")
	t.Setenv("PGPORT", port)
	at := "127.0.0.1:" + port
	type address struct {
		text string
		want int
	}
	var addresses []address
	for _, odd := range []string{"@", "/", "?", "#", "%", ":", "[", "]", " ", "&", "=", "'", `\`, "`", ",", ";", "\t", "\x00", "%2", "%zz", "%40", "@/", "/@", "?x=", "#@", "é"} {
		for _, password := range []string{"4711" + odd + "kangaroo", "4711" + odd + "kangaroo=1", "kangaroo" + odd + "4711", odd + "kangaroo" + odd + "4711" + odd} {
			encoded := cli.ExitDatabase
			if odd == "\x00" { // no password has one
				encoded = cli.ExitUsage
			}
			addresses = append(addresses,
				address{"postgres://app:" + url.QueryEscape(password) + "@" + at + "/shop", encoded},
				address{"postgres://app@" + at + "/shop?password=" + url.QueryEscape(password), encoded},
				address{"postgres://app:" + password + "@" + at + "/shop", 0},
				address{"postgres://app:" + password + "@" + at + "/shop?sslmode=disable", 0},
				address{"postgres://app@" + at + "/shop?password=" + password, 0},
				address{"host=127.0.0.1 port=" + port + " user=app password=" + password, 0},
				address{"host=127.0.0.1 password=" + password + " port=" + port + " user=app", 0},
				address{"host=127.0.0.1 password='" + password + "' user=app", 0},
			)
		}
	}
	for _, begin := range []string{" ", "'", `"`, "=", "postgres:", "DATABASE_URL="} { // copied with too much
		addresses = append(addresses, address{begin + "postgres://app:kangaroo4711@" + at + "/shop?sslmode=disable", 0})
	}
	for _, scheme := range []string{"POSTGRES://", "postgres:/", "postgres//", "postgres:", "mysql://", "jdbc:postgresql://", "pg://"} {
		addresses = append(addresses, address{scheme + "app:kangaroo4711@" + at + "/shop?sslmode=disable", cli.ExitUsage})
	}
	for _, a := range addresses {
		code, _, stderr := commandtest.Call(t, "migrate", "status", "--database-url", a.text)
		if code != a.want && (a.want != 0 || code != cli.ExitUsage && code != cli.ExitDatabase) {
			t.Errorf("%q: exit code %d, want %d: %s", a.text, code, a.want, stderr)
		}
		shown := strings.ReplaceAll(stderr, at, "")
		if strings.Contains(shown, "4711") || strings.Contains(shown, "kangaroo") {
			t.Errorf("%q: stderr shows a part of the password: %s", a.text, stderr)
		}
	}
}

// TestOpenPasswordFromElsewhere: a password of the environment, or of a service file with
// and without errors, is not shown, not even if the server quotes it.
func TestOpenPasswordFromElsewhere(t *testing.T) {
	port := fakeServer(t, quote)
	service := filepath.Join(t.TempDir(), "pg_service.conf")
	for _, name := range []string{"PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGSERVICE"} {
		t.Setenv(name, "")
	}
	t.Setenv("PGSERVICEFILE", service)
	for _, odd := range []string{"", " ", "'", `\`, `"`, "=", "%", "&", "@", "/", ":", "é", "\t", ",", "\u202e"} {
		password := "kangaroo" + odd + "4711" + odd + "0815"
		for _, c := range []struct {
			env, address, file string
			want               int
		}{
			{"", "postgres://app:" + url.QueryEscape(password) + "@127.0.0.1:" + port + "/shop", "", cli.ExitDatabase},
			{"", "host=127.0.0.1 port=" + port + " user=app password='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password) + "'", "", cli.ExitDatabase},
			{password, "postgres://app@127.0.0.1:" + port + "/shop", "", cli.ExitDatabase},
			{"other", "postgres://app@127.0.0.1:" + port + "/shop?sslpassword=" + url.QueryEscape(password) + "&sslmode=verify-full", "", 0},
			{password, "postgres://app@127.0.0.1:" + port + "/shop?sslmode=" + url.QueryEscape(password), "", cli.ExitUsage},
			{"", "service=shop", "[shop]\nhost=127.0.0.1\nport=" + port + "\nuser=app\npassword=" + password + "\n", cli.ExitDatabase},
			{"", "service=shop", "[shop]\nport=" + password, cli.ExitUsage},
			{"", "service=shop", "[shop]\npassword " + password, 0},
			{"", "service=shop", "password=" + password, cli.ExitUsage},
			{"", "service=shop", "[shop]\nhost=127.0.0.1\nport=" + port + "\nuser=app\npassword=a b\n" + password + "=1", 0},
		} {
			must.Succeed(t, os.WriteFile(service, []byte(c.file), 0o600))
			t.Setenv("PGPASSWORD", c.env)
			for _, args := range [][]string{{"migrate", "status"}, {"allow", "--limit", "1", "k", "--json"}} {
				t.Setenv("DATABASE_URL", c.address)
				code, stdout, stderr := commandtest.Call(t, args...)
				if c.want != 0 && code != c.want || code < cli.ExitUsage {
					t.Errorf("%+v: exit code %d, want %d: %s", c, code, c.want, stderr)
				}
				for _, part := range []string{"kangaroo", "4711", "0815"} {
					if strings.Contains(stdout+strings.ReplaceAll(stderr, port, ""), part) {
						t.Errorf("%+v: stderr shows a part of the password: %s", c, stderr)
						break
					}
				}
			}
		}
	}
}

// TestArgumentsWithPasswords: a connection string in the wrong place is not quoted with its
// password.
func TestArgumentsWithPasswords(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	const at = "postgres://app:kangaroo%204711@db.example/shop"
	for _, args := range [][]string{
		{at}, {"migrate", at}, {"migrate", "up", at}, {"help", at}, {"-" + at}, {"--" + at}, {"--url=" + at}, {"--database-urll", at},
		{"replay", "--limit", "1", at}, {"replay", "--limit", "1", "--html", at, "/dev/null"}, {"allow", "--limit", at, "k"}, {"allow", "--limit", "1", "--period", at, "k"},
		{"allow", "--limit", "1", "--algorithm", at, "k"}, {"allow", "--limit", "1", "--policy", at, "k"}, {"settle", at, at}, {"block", "k", at},
		{"migrate", "export", at}, {"allow", "--limit", "1", "--data-dir", "/dev/null/" + at, "k"}, {"version", at}, {"completion", at},
		{"host=db password='kangaroo 4711'"}, {"replay", "--limit", "1", "host=db password=kangaroo\\ 4711 user=app"}, {"migrate", "PASSWORD='kangaroo4711'"},
	} {
		for _, args := range [][]string{args, append([]string{"--json"}, args...)} {
			code, stdout, stderr := commandtest.Call(t, args...)
			if code < cli.ExitUsage || stdout != "" || strings.Contains(stderr, "kangaroo") || strings.Contains(stderr, "4711") {
				t.Errorf("%q: exit code %d, stdout %q, stderr %s", args, code, stdout, stderr)
			}
		}
	}
}
