package connect

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// FuzzRedact: a message with a whole password of the arguments or the environment loses it,
// in any of the forms in which Go and pgx quote.
func FuzzRedact(f *testing.F) {
	for _, odd := range []string{"", "@", "/", "?", "#", "%", ":", "'", `\`, `"`, " ", "&", "=", "%zz", "%2F", "\t", "é", "\xff", "\u2028", ",", "+"} {
		f.Add(odd, "")
		f.Add("", odd)
		f.Add(odd, odd)
		f.Add("é\t"+odd, "")
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		const one, two = "kangaroo", "47110815"
		password := one + before + after + two
		if strings.ContainsAny(password, "\x00\n") {
			return
		}
		pair := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password)
		for _, address := range []string{
			"postgres://app:" + url.QueryEscape(password) + "@db/shop",
			(&url.URL{Scheme: "postgres", User: url.UserPassword("app", password), Host: "db"}).String(),
			"postgres://db/shop?user=app&password=" + url.QueryEscape(password) + "&sslmode=disable",
			"postgres://db/shop?sslpassword=" + url.PathEscape(password),
			"host=db password='" + pair + "' user=app",
			"host=db PassWord = '" + pair + "'",
			"--database-url=postgres://app:" + url.QueryEscape(password) + "@db",
			"postgres://app:" + password + "@db/shop", // not encoded
			"postgres:/app:" + password + "@db/shop",
		} {
			for _, message := range []string{
				password, url.QueryEscape(password), url.PathEscape(password), fmt.Sprintf("%q", password), fmt.Sprintf("%+q", password),
				fmt.Sprintf("parse %q: no", address), "open " + address + ": no such file", url.UserPassword("app", password).String(),
				fmt.Sprintf("%v", &url.Error{Op: "parse", URL: address, Err: fmt.Errorf("no")}),
			} {
				if got := new(Database).Redact(message, []string{"allow", address}); strings.Contains(got, one) || strings.Contains(got, two) {
					t.Errorf("%q of %q: shown as %q", message, address, got)
				}
			}
		}
	})
}

func TestRedactLeavesTheRest(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://postgres:postgres@db/shop?password=kangaroo")
	t.Setenv("PGPASSWORD", "hunter2")
	t.Setenv("PGSSLPASSWORD", "abc")
	for message, want := range map[string]string{
		"connect: user=postgres: no abc": "connect: user=postgres: no abc", // the user; too short
		"hunter2 and kangaroo2":          "… and …2",
		"nothing":                        "nothing",
	} {
		if got := new(Database).Redact(message, []string{"password", "password=", "x://", "@", ":/@", "password='", `password=\`}); got != want {
			t.Errorf("%s: got %s, want %s", message, got, want)
		}
	}
}

// FuzzPassword: neither an error nor the name of the database shows a part of a password,
// encoded or not, whatever signs are around its parts.
func FuzzPassword(f *testing.F) {
	for _, odd := range []string{"", "@", "/", "?", "#", "%", ":", "[", "'", `\`, " ", "&", "=", "%zz", "/@", "?a=", "\x00", ",", "1/"} {
		f.Add(odd, "", "")
		f.Add("", odd, "")
		f.Add(odd, odd, odd)
	}
	f.Fuzz(func(t *testing.T, before, between, after string) {
		const one, two = "kangaroo", "47110815"
		password := before + one + between + two + after
		for _, address := range []string{
			"postgres://app:" + password + "@db.example:5432/shop",
			"postgresql://app:" + password + "@db.example/shop?sslmode=disable",
			"postgres://app:" + url.QueryEscape(password) + "@db.example:5432/shop",
			"postgres://app@db.example:5432/shop?password=" + url.QueryEscape(password),
			"postgres://app@db.example:5432/shop?password=" + password + "&sslmode=disable",
			"postgres://app@db.example/shop?sslpassword=" + password,
			"host=db.example user=app password=" + password,
			"host=db.example user=app password='" + password + "' dbname=shop",
			"host=db.example password = '" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password) + "' user=app",
			"host=db.example user=app password=x target_session_attrs=" + password,
			"postgres://app@db.example/shop?target_session_attrs=" + url.QueryEscape(password),
			"postgres://app@db.example/shop?channel_binding=" + url.QueryEscape(password),
			"postgres://app@db.example/shop?min_protocol_version=" + url.QueryEscape(password),
			"postgres://app@db.example/shop?default_query_exec_mode=" + url.QueryEscape(password),
			"postgres://app@db.example/shop?pool_max_conns=" + url.QueryEscape(password),
			"postgres://app@db.example/shop?sslmode=" + url.QueryEscape(password),
		} {
			config, err := parse(address)
			shown := ""
			if err != nil {
				shown = err.Error()
			} else {
				shown = describe(config.ConnConfig)
			}
			if strings.Contains(shown, one) || strings.Contains(shown, two) {
				t.Errorf("%q: shown as %q", address, shown)
			}
		}
	})
}
