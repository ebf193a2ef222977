package localpg

import (
	"errors"
	"net/url"
	"os"
	"runtime"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// TestServerOtherUsers: another user of the machine can neither enter the directories of
// the socket and the data nor log in over TCP without the password, which SCRAM checks.
func TestServerOtherUsers(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Log("Windows has no such modes")
		return
	}
	s := start(t, Options{})
	for _, dir := range []string{s.runDir, s.dataDir} {
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o700 {
			t.Errorf("%s has mode %o, want 700", dir, mode)
		}
	}
	for what, user := range map[string]*url.Userinfo{"no password": url.User(superuser), "a wrong password": url.UserPassword(superuser, "wrong")} {
		address, err := url.Parse(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		address.User = user
		conn, err := pgx.Connect(t.Context(), address.String())
		if err == nil {
			conn.Close(t.Context())
			t.Errorf("with %s: logged in", what)
			continue
		}
		var answer *pgconn.PgError
		if what == "a wrong password" && (!errors.As(err, &answer) || answer.Code != "28P01") {
			t.Errorf("with %s: %v", what, err)
		}
	}
	if got := query(t, s.URL(), "select string_agg(distinct auth_method, ' ') from pg_hba_file_rules where type like 'host%'"); got != "scram-sha-256" {
		t.Errorf("over TCP the server checks %s", got)
	}
	if got := query(t, s.URL(), "show listen_addresses"); got != "127.0.0.1" && got != "localhost" {
		t.Errorf("the server listens on %s", got)
	}
}
