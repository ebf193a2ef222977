package connect_test

import (
	"errors"
	"fmt"
	"io"
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
)

// refusingServer refuses every connection like PostgreSQL: it quotes a parameter that it
// does not know, or the user. It returns its port.
func refusingServer(t *testing.T) (port string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go refuse(t, conn)
		}
	}()
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return port
}

func refuse(t *testing.T, conn net.Conn) {
	defer conn.Close()
	backend := pgproto3.NewBackend(conn, conn)
	for {
		message, err := backend.ReceiveStartupMessage()
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, net.ErrClosed) {
				t.Log(err)
			}
			return
		}
		startup, ok := message.(*pgproto3.StartupMessage)
		if !ok { // a request for TLS
			_, _ = conn.Write([]byte("N"))
			continue
		}
		answer := &pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: fmt.Sprintf("password authentication failed for user %q", startup.Parameters["user"])}
		for name := range startup.Parameters {
			if !slices.Contains([]string{"user", "database", "application_name"}, name) {
				answer = &pgproto3.ErrorResponse{Severity: "FATAL", Code: "42704", Message: fmt.Sprintf("unrecognized configuration parameter %q", name)}
			}
		}
		backend.Send(answer)
		_ = backend.Flush() // the client may have gone
		return
	}
}

// TestOpenOddPasswords: no part of a password appears on stderr, whatever it does to the
// syntax of the connection string, and even if a server quotes what it was sent.
func TestOpenOddPasswords(t *testing.T) {
	port := refusingServer(t)
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

// quotingServer asks for the password in clear and quotes it in its refusal. It returns its
// port.
func quotingServer(t *testing.T) (port string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
					if _, ok := message.(*pgproto3.StartupMessage); ok {
						break
					}
					_, _ = conn.Write([]byte("N")) // no TLS
				}
				backend.Send(&pgproto3.AuthenticationCleartextPassword{})
				_ = backend.Flush()
				_ = backend.SetAuthType(pgproto3.AuthTypeCleartextPassword)
				answer, err := backend.Receive()
				if err != nil {
					return
				}
				password, _ := answer.(*pgproto3.PasswordMessage)
				if password == nil {
					return
				}
				backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: fmt.Sprintf("no %q, %s or %s", password.Password, password.Password, url.QueryEscape(password.Password))})
				_ = backend.Flush() // the client may have gone
			}()
		}
	}()
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return port
}

// TestOpenPasswordFromElsewhere: a password of the environment, or of a service file with
// and without errors, is not shown, not even if the server quotes it.
func TestOpenPasswordFromElsewhere(t *testing.T) {
	port := quotingServer(t)
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
			if err := os.WriteFile(service, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
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
		{"allow", "--limit", "1", "--algorithm", at, "k"}, {"allow", "--limit", "1", "--name", at, "k"}, {"settle", at, at}, {"block", "k", at},
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
