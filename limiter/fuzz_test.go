package limiter

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/internal/must"
)

// FuzzJoinKey: the parts can be told from the joined key, so no other parts give it.
func FuzzJoinKey(f *testing.F) {
	for _, parts := range [][3]string{{"", "", ""}, {"a:b", "c", ""}, {`a\`, `:b`, `\:`}, {"\x00", "\xff", ":::"}, {"é", "::", `\\`}} {
		f.Add(parts[0], parts[1], parts[2], 3)
		f.Add(parts[0], parts[1], parts[2], 2)
	}
	f.Fuzz(func(t *testing.T, a, b, c string, n int) {
		parts := []string{a, b, c}[:2+n&1]
		key := JoinKey(parts...)
		if back := split(key); strings.Join(back, "\x01") != strings.Join(parts, "\x01") || len(back) != len(parts) {
			t.Errorf("%q gives %q, which is %q", parts, key, back)
		}
	})
}

// split undoes JoinKey.
func split(key string) []string {
	parts, part := []string(nil), []byte(nil)
	for i := 0; i < len(key); i++ {
		switch {
		case key[i] == ':':
			parts, part = append(parts, string(part)), nil
			continue
		case key[i] == '\\' && i+1 < len(key):
			i++
		}
		part = append(part, key[i])
	}
	return append(parts, string(part))
}

// FuzzKey: a key is refused as ErrInvalid, or counted for itself alone.
func FuzzKey(f *testing.F) {
	for _, key := range []string{"", "k", "\x00", "\xff", strings.Repeat("k", 1024), strings.Repeat("k", 1025), "é", "e\u0301", "K", " k", "'; DROP TABLE", `\`} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		l := NewMemory(&Config{Now: time.Now})
		p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 1, Period: time.Hour}
		r, err := l.Allow(t.Context(), p, key)
		if valid := key != "" && len(key) <= 1024 && utf8.ValidString(key) && !strings.Contains(key, "\x00"); valid != (err == nil) {
			t.Errorf("%q: %v", key, err)
		}
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%q: %v", key, err)
			}
			return
		}
		again, err := l.Allow(t.Context(), p, key)
		if !r.Allowed || again.Allowed || err != nil {
			t.Errorf("%q: allowed %v, then %v, %v", key, r.Allowed, again.Allowed, err)
		}
		if other, err := l.Allow(t.Context(), p, key[:len(key)-1]+"~~"); err == nil && !other.Allowed {
			t.Errorf("%q shares its count with another key", key)
		}
	})
}

// FuzzReservationID: an ID that Reserve did not return is refused, and changes nothing.
func FuzzReservationID(f *testing.F) {
	for _, id := range []string{
		"", ":", "token_bucket:", "token_bucket:0123456789abcdef", "leaky_bucket_queue:0123456789abcdef", "token_bucket:" + strings.Repeat("a", 200),
		"TOKEN_BUCKET:0123456789abcdef", "token_bucket:0123456789\x00abcdef", "token_bucket:0123456789abcde\xff", "'; DROP TABLE pglimit_reservations",
		"token_bucket:0123456789abcdef:p:aw", "gcra", "q", "aw", "ax", "aw=", "aw\n", "aw:", "", strings.Repeat("a", 1366), strings.Repeat("a", 1368), "0123456789abcdef",
	} {
		f.Add(id, 1.0)
		f.Add(id, -1.0)
	}
	f.Fuzz(func(t *testing.T, id string, units float64) {
		l := NewMemory(nil)
		p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 10, Period: 1000 * time.Hour}
		held := must.OK(l.Reserve(t.Context(), p.Request("k", 4), time.Hour))(t)
		part := strings.Split(held.ID, ":")
		for i := range part { // the text alone, and in place of each part
			other := slices.Clone(part)
			other[i] = id
			for _, id := range []string{id, strings.Join(other, ":")} {
				if id == held.ID {
					continue
				}
				_, settled := l.Settle(t.Context(), id, units)
				cancelled := l.Cancel(t.Context(), id)
				for verb, err := range map[string]error{"Settle": settled, "Cancel": cancelled} {
					if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrNoReservation) {
						t.Errorf("%s of %q: %v", verb, id, err)
					}
				}
			}
		}
		if r, err := l.Check(t.Context(), p, "k", 0); err != nil || r.Level < 3.9 {
			t.Errorf("%q changed another reservation: level %v, %v", id, r.Level, err)
		}
		if err := l.Cancel(t.Context(), held.ID); err != nil {
			t.Errorf("the reservation is gone after %q: %v", id, err)
		}
	})
}
