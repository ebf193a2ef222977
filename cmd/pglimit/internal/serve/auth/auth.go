// Package auth has the tokens of callers, and what each caller may do.
package auth

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
)

// Scope is what a caller may do: one or more of the constants.
type Scope uint8

const (
	// Decide requests units and reads what remains.
	Decide Scope = 1 << iota
	// Spend charges, refunds, reserves, settles, cancels, and begins and reports attempts.
	Spend
	// Operate blocks and resets keys, lists keys and policies, and sees the dashboard.
	Operate

	all = Decide | Spend | Operate
)

// names are the scopes by their names in files and flags.
var names = map[string]Scope{"decide": Decide, "spend": Spend, "operate": Operate}

// String returns the names of s, separated by commas.
func (s Scope) String() string {
	var list []string
	for _, name := range []string{"decide", "spend", "operate"} {
		if s&names[name] != 0 {
			list = append(list, name)
		}
	}
	return strings.Join(list, ",")
}

// ParseScope reads what String writes.
func ParseScope(text string) (s Scope, err error) {
	for name := range strings.SplitSeq(text, ",") {
		one, known := names[name]
		if !known {
			return 0, fmt.Errorf("scope %.40q: must be decide, spend or operate, separated by commas", name)
		}
		s |= one
	}
	return s, nil
}

// Caller is who sent a request.
type Caller struct {
	Name   string // "" without authentication
	Scopes Scope
}

const (
	prefix    = "pgl_" // of tokens, so that scanners of secrets find them
	algorithm = "sha256:"
	maxTokens = 1000
)

// NewToken returns a random token of 256 bits.
func NewToken() string {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	return prefix + base64.RawURLEncoding.EncodeToString(random[:])
}

// Line returns the line of a file for a token. It has the SHA-256 of the token: a token is
// random, so no slower hash is needed.
func Line(name string, scopes Scope, token string) (string, error) {
	if !validName.MatchString(name) {
		return "", fmt.Errorf("name %.80q: must be 1 to 64 of the characters A-Z, a-z, 0-9, '_', '.' and '-'", name)
	}
	sum := sha256.Sum256([]byte(token))
	return fmt.Sprintf("%s %s %s%x", name, scopes, algorithm, sum), nil
}

var validName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// Tokens are the callers of a file. They do not change.
type Tokens struct{ list []entry }

type entry struct {
	sum [sha256.Size]byte
	Caller
}

// Parse reads a file: a line for each token, as Line makes it. Empty lines and those that begin
// with # are left out. The error names the file, the line and the field.
func Parse(file string, text []byte) (*Tokens, error) {
	t := &Tokens{}
	number := 0
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) { // a byte order mark
		number++
		fields := strings.Fields(string(line))
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		e, err := parse(fields)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, number, err)
		}
		for _, other := range t.list {
			if other.sum == e.sum {
				return nil, fmt.Errorf("%s:%d: %s has the token of %s: make another", file, number, e.Name, other.Name)
			}
		}
		t.list = append(t.list, e)
	}
	switch n := len(t.list); {
	case n == 0:
		return nil, fmt.Errorf("%s has no token: add a line by `pglimit serve token NAME`", file)
	case n > maxTokens:
		return nil, fmt.Errorf("%s has %d tokens: %d at most", file, n, maxTokens)
	}
	return t, nil
}

func parse(fields []string) (e entry, err error) {
	if len(fields) != 3 {
		return e, fmt.Errorf("the line has %d fields: must be NAME SCOPES %sHASH", len(fields), algorithm)
	}
	if e.Name = fields[0]; !validName.MatchString(e.Name) {
		return e, fmt.Errorf("name %.80q: must be 1 to 64 of the characters A-Z, a-z, 0-9, '_', '.' and '-'", e.Name)
	}
	if e.Scopes, err = ParseScope(fields[1]); err != nil {
		return e, err
	}
	digits, known := strings.CutPrefix(fields[2], algorithm)
	if sum, err := hex.DecodeString(digits); !known || err != nil || copy(e.sum[:], sum) != len(sum) || len(sum) != sha256.Size {
		return e, fmt.Errorf("the hash of %s is not %s and %d hexadecimal digits, as `pglimit serve token` prints it; it is not shown, because it may be a token", e.Name, algorithm, 2*sha256.Size)
	}
	return e, nil
}

// find returns the caller with a token. Its time does not depend on how far a token is right.
func (t *Tokens) find(token string) (c Caller, found bool) {
	sum := sha256.Sum256([]byte(token))
	at := -1
	for i := range t.list {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], t.list[i].sum[:]), i, at)
	}
	if at < 0 {
		return c, false
	}
	return t.list[at].Caller, true
}

// Gate lets callers pass by their tokens. Without tokens it lets everybody pass. It is safe for
// concurrent use.
type Gate struct{ tokens atomic.Pointer[Tokens] }

// Set replaces the tokens.
func (g *Gate) Set(t *Tokens) { g.tokens.Store(t) }

// Guarded reports whether callers need a token.
func (g *Gate) Guarded() bool { return g.tokens.Load() != nil }

// Errors of Enter.
var (
	ErrNoToken = errors.New("no token: send the header Authorization: Bearer TOKEN, or Pglimit-Token: TOKEN")
	ErrUnknown = errors.New("the token is not known here")
)

// ScopeError is the error of a caller without a scope.
type ScopeError struct {
	Caller string
	Needs  Scope
}

// Error names the caller and the scope.
func (e *ScopeError) Error() string {
	return fmt.Sprintf("the token of %s has not the scope %s", e.Caller, e.Needs)
}

// Enter returns the caller with a token. The error is ErrNoToken, ErrUnknown or a *ScopeError.
func (g *Gate) Enter(token string, needs Scope) (Caller, error) {
	t := g.tokens.Load()
	if t == nil {
		return Caller{Scopes: all}, nil
	}
	if token == "" {
		return Caller{}, ErrNoToken
	}
	c, found := t.find(token)
	switch {
	case !found:
		return c, ErrUnknown
	case c.Scopes&needs != needs:
		return c, &ScopeError{c.Name, needs}
	}
	return c, nil
}

// Bearer returns the token of a value of the header Authorization, or "".
func Bearer(value string) string {
	const scheme = "Bearer "
	if len(value) > len(scheme) && strings.EqualFold(value[:len(scheme)], scheme) {
		return value[len(scheme):]
	}
	return ""
}
