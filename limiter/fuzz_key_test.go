package limiter

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzIdempotencyKey: an idempotency key is refused as ErrInvalid, or it is remembered for
// itself alone.
func FuzzIdempotencyKey(f *testing.F) {
	for _, id := range []string{"o", "\x00", "\xff", strings.Repeat("k", 255), strings.Repeat("k", 256), strings.Repeat("é", 128), "é", "e\u0301", " o", "'; DROP TABLE", `\`, ":"} {
		f.Add(id, id+"2")
	}
	f.Add("order", "order ")
	f.Fuzz(func(t *testing.T, one, two string) {
		if one == "" {
			return // no idempotency key
		}
		l := NewMemory(nil)
		p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 9, Period: time.Hour}
		do := func(id string) (Result, error) {
			request := p.Request("k", 2)
			request.IdempotencyKey = id
			return l.Do(t.Context(), request)
		}
		first, err := do(one)
		if valid := len(one) <= 255 && utf8.ValidString(one) && !strings.Contains(one, "\x00"); valid != (err == nil) || err != nil && !errors.Is(err, ErrInvalid) {
			t.Fatalf("%q: %v", one, err)
		}
		if err != nil {
			return
		}
		again, err := do(one)
		if err != nil || first.Replayed || !again.Replayed || again.Level != 2 {
			t.Errorf("%q: replayed %v, then %v at level %v, %v", one, first.Replayed, again.Replayed, again.Level, err)
		}
		if other, err := do(two); err == nil && two != one && (other.Replayed || other.Level != 4) {
			t.Errorf("%q is answered as %q: %+v", two, one, other)
		}
	})
}
