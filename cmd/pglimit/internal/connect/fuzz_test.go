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
