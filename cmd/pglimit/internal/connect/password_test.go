package connect_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
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
