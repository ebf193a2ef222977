package auth

import (
	"errors"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

// TestTokens: a token of a file has its caller's scopes, and a file has no token in clear.
func TestTokens(t *testing.T) {
	t.Parallel()
	one, two := NewToken(), NewToken()
	if one == two || len(one) != len(prefix)+43 {
		t.Errorf("tokens %q and %q", one, two)
	}
	text := "# callers\n\n" + must.OK(Line("web", Decide, one))(t) + "\r\n" + must.OK(Line("billing", Spend|Operate, two))(t)
	if strings.Contains(text, one) || strings.Contains(text, two) {
		t.Error("the file has a token:", text)
	}
	var g Gate
	if c, err := g.Enter("", all); g.Guarded() || err != nil || c.Name != "" || c.Scopes != all {
		t.Errorf("without tokens: %+v, %v", c, err)
	}
	g.Set(must.OK(Parse("f", []byte(text)))(t))
	for _, c := range []struct {
		token string
		needs Scope
		name  string
		err   error
	}{
		{one, Decide, "web", nil},
		{two, Spend, "billing", nil},
		{two, Operate, "billing", nil},
		{two, Spend | Operate, "billing", nil},
		{"", Decide, "", ErrNoToken},
		{one[:len(one)-1], Decide, "", ErrUnknown},
		{one + "x", Decide, "", ErrUnknown},
		{strings.ToLower(one), Decide, "", ErrUnknown},
		{"\x00", Decide, "", ErrUnknown},
	} {
		caller, err := g.Enter(c.token, c.needs)
		if !errors.Is(err, c.err) || caller.Name != c.name {
			t.Errorf("%q for %v: %+v, %v, want %q, %v", c.token, c.needs, caller, err, c.name, c.err)
		}
	}
	var scope *ScopeError
	if _, err := g.Enter(two, Decide); !errors.As(err, &scope) || err.Error() != "the token of billing has not the scope decide" {
		t.Error(err)
	}
}

// TestParse: an error names the line and the field, and never shows what may be a token.
func TestParse(t *testing.T) {
	t.Parallel()
	token := NewToken()
	good := must.OK(Line("a", Decide, token))(t)
	hash := strings.Fields(good)[2]
	for text, want := range map[string]string{
		"":                         "f has no token",
		"# none\n":                 "f has no token",
		"\n\na decide":             "f:3: the line has 2 fields",
		"a decide " + hash + " x":  "f:1: the line has 4 fields",
		"ä decide " + hash:         `f:1: name "ä": must be`,
		"a decide,admin " + hash:   `f:1: scope "admin": must be`,
		"a  " + hash + " x":        `f:1: scope "sha256`,
		"a decide " + token:        "f:1: the hash of a is not sha256:",
		"a decide " + hash[:70]:    "f:1: the hash of a is not sha256:",
		"a decide " + hash + "00":  "f:1: the hash of a is not sha256:",
		"a decide sha256:" + token: "f:1: the hash of a is not sha256:",
		good + "\nb spend " + hash: "f:2: b has the token of a",
		good:                       "",
		"\ufeff" + good:            "",
	} {
		_, err := Parse("f", []byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), token) {
			t.Errorf("%q: the error has the token: %v", text, err)
		}
	}
	for value, want := range map[string]string{"": "", "Bearer": "", "Bearer ": "", "Bearer x": "x", "bearer x y": "x y", "Basic x": ""} {
		if got := Bearer(value); got != want {
			t.Errorf("Bearer(%q) = %q, want %q", value, got, want)
		}
	}
}
