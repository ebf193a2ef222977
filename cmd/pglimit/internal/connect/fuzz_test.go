package connect

import (
	"net/url"
	"strings"
	"testing"
)

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
			cfg, err := parse(address)
			shown := ""
			if err != nil {
				shown = err.Error()
			} else {
				shown = describe(cfg.ConnConfig)
			}
			if strings.Contains(shown, one) || strings.Contains(shown, two) {
				t.Errorf("%q: shown as %q", address, shown)
			}
		}
	})
}
