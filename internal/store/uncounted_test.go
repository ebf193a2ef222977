package store_test

import (
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/store"
)

// FuzzParseUncountedID: an ID gives the policy and the key that it was made of, no other
// text does, and it is no ID of a reservation.
func FuzzParseUncountedID(f *testing.F) {
	for _, key := range []string{"k", "", ":", "ä", "\xff", strings.Repeat("k", 1024)} {
		f.Add("p", key, "uncounted:0123456789abcdef:p:aw")
	}
	for _, text := range []string{"", "uncounted", "uncounted:", "uncounted:::", "Uncounted:0123456789abcdef:p:aw", "uncounted:0123456789abcdef:p:ax", "uncounted:0123456789abcdef:p:aw=", "token_bucket:0123456789abcdef:p:aw", "uncounted:0123456789abcde:p:aw", "uncounted2:0123456789abcdef:p:aw", "unc:0123456789abcdef:p:aw"} {
		f.Add("tokens.a_b-c", "k", text)
	}
	f.Fuzz(func(t *testing.T, policy, key, text string) {
		const random = "0123456789abcdefXYZ"
		if !strings.Contains(policy, ":") {
			id := store.UncountedID(random, policy, key)
			if gotPolicy, gotKey, ok := store.ParseUncountedID(id); !ok || gotPolicy != policy || gotKey != key {
				t.Errorf("%q is read as %q, %q, %v", id, gotPolicy, gotKey, ok)
			}
			if got, ok := store.ParseReservationID(id); ok {
				t.Errorf("%q is a reservation too: %+v", id, got)
			}
		}
		gotPolicy, gotKey, ok := store.ParseUncountedID(text)
		if !ok {
			return
		}
		part := strings.Split(text, ":")
		if len(part) != 4 || part[0] != "uncounted" || store.UncountedID(part[1], gotPolicy, gotKey) != text {
			t.Errorf("%q and %q are one ID", text, store.UncountedID(part[1], gotPolicy, gotKey))
		}
	})
}
