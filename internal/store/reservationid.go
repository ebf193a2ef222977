package store

import (
	"encoding/base64"
	"strings"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// ReservationID identifies a reservation: by its key, and by a random text that is unique
// for the key.
type ReservationID struct {
	Algorithm   algorithm.Name
	Policy, Key string // the key as stored
	ID          string // as stored: 16 to 32 letters and digits
}

// Public returns the ID that callers have: algorithm:id:policy:key, with the key in
// base64url without padding. The SQL functions write and read the same text.
func (r ReservationID) Public() string {
	return string(r.Algorithm) + ":" + r.ID + ":" + r.Policy + ":" + base64.RawURLEncoding.EncodeToString([]byte(r.Key))
}

// ParseReservationID returns the ID whose Public is text, and whether there is one. It
// leaves the rules for policies' names and for keys to the caller.
func ParseReservationID(text string) (id ReservationID, ok bool) {
	id, ok = parseID(text)
	return id, ok && id.Algorithm == id.Algorithm.Table() && id.Algorithm.Index() >= 0 && id.Algorithm != algorithm.LeakyBucketQueue
}

// ParseIDOf is ParseReservationID for the ID of an attempt or a slot: of that algorithm.
func ParseIDOf(a algorithm.Name, text string) (id ReservationID, ok bool) {
	id, ok = parseID(text)
	return id, ok && id.Algorithm == a
}

// parseID is ParseReservationID for any word as the algorithm.
func parseID(text string) (id ReservationID, ok bool) {
	parts := strings.Split(text, ":")
	if len(parts) != 4 {
		return id, false
	}
	key, err := base64.RawURLEncoding.DecodeString(parts[3])
	id = ReservationID{Algorithm: algorithm.Name(parts[0]), Policy: parts[2], Key: string(key), ID: parts[1]}
	// Several texts decode to one key: the decoder ignores line breaks and spare bits.
	return id, err == nil && validID(id.ID) && id.Public() == text
}

func validID(s string) bool {
	for i := range len(s) {
		if c := s[i]; !(c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z') {
			return false
		}
	}
	return len(s) >= 16 && len(s) <= 32
}

// uncounted is the first part of the IDs of reservations that hold nothing.
const uncounted = "uncounted"

// UncountedID returns the ID of a reservation that counts nothing: uncounted:id:policy:key.
// key is as stored.
func UncountedID(id, policy, key string) string {
	return ReservationID{Algorithm: uncounted, Policy: policy, Key: key, ID: id}.Public()
}

// ParseUncountedID returns the policy and the stored key of an UncountedID, and whether text
// is one. It leaves the rules for policies' names and for keys to the caller.
func ParseUncountedID(text string) (policy, key string, ok bool) {
	if !strings.HasPrefix(text, uncounted+":") {
		return "", "", false
	}
	id, ok := parseID(text)
	return id.Policy, id.Key, ok
}
