package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

const (
	attacker = "203.0.113.9"
	owner    = "198.51.100.7"
)

// attempt logs in from an address and returns the status.
func attempt(h http.Handler, address, name, password string) int {
	r := httptest.NewRequest("POST", "/login", nil)
	r.RemoteAddr = address + ":4711"
	r.SetBasicAuth(name, password)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

// inMemory returns the handler over a limiter without a database, and its clock.
func inMemory() (h http.Handler, now *time.Time) {
	at := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	return newHandler(limiter.NewMemory(&limiter.Config{Now: func() time.Time { return at }})), &at
}

// TestLoginVariants: all spellings of a name are one account, which is found under each,
// and share one limit.
func TestLoginVariants(t *testing.T) {
	variants := []string{"alice", "Alice", "ALICE", "aLiCe", "ａｌｉｃｅ", "ＡＬＩＣＥ"}
	h, _ := inMemory()
	for _, name := range variants {
		if got := attempt(h, owner, name, "wonderland"); got != http.StatusOK {
			t.Errorf("%q with the right password: got %d", name, got)
		}
	}
	looked := 0
	for i := range 60 {
		if attempt(h, attacker, variants[i%len(variants)], "guess") == http.StatusUnauthorized {
			looked++
		}
	}
	if looked != int(logins.Limit) {
		t.Errorf("%d guesses at variants of one name were looked at, want %v", looked, logins.Limit)
	}
}

// TestLoginOwnerGetsIn: whoever guesses at an account, from one address or many, does not deny
// its owner where they have logged in before. Where they have not, they wait an hour at most.
func TestLoginOwnerGetsIn(t *testing.T) {
	h, now := inMemory()
	login := func(address string) int { return attempt(h, address, "alice", "wonderland") }
	if got := login(owner); got != http.StatusOK {
		t.Errorf("the first login: got %d", got)
	}
	for i := range 1000 {
		attempt(h, fmt.Sprint("192.0.2.", i%200), "alice", "guess")
	}
	if known, elsewhere := login(owner), login("198.51.100.8"); known != http.StatusOK || elsewhere != http.StatusTooManyRequests {
		t.Errorf("after guesses the owner got %d, and %d elsewhere", known, elsewhere)
	}
	*now = now.Add(logins.BlockMax)
	if got := login("198.51.100.8"); got != http.StatusOK {
		t.Errorf("elsewhere after the wait the owner got %d", got)
	}
}

// TestLoginManyAddresses: a day of guesses from many addresses looks at few of them, although
// the owner logs in every hour.
func TestLoginManyAddresses(t *testing.T) {
	h, now := inMemory()
	looked := 0
	for minute := range 24 * 60 {
		if minute%60 == 0 {
			if got := attempt(h, owner, "alice", "wonderland"); got != http.StatusOK {
				t.Errorf("after %d minutes the owner got %d", minute, got)
			}
		}
		for i := range 10 {
			if attempt(h, fmt.Sprint("192.0.", i, ".", minute%256), "alice", "guess") == http.StatusUnauthorized {
				looked++
			}
		}
		*now = now.Add(time.Minute)
	}
	if looked != 31 { // three, one after each of six waits of 1 to 32 minutes, and one an hour
		t.Errorf("%d guesses were looked at in a day", looked)
	}
}

// TestLoginRandomNames: one address cannot try the same password on any number of
// accounts, and a name that no account can have is not counted.
func TestLoginRandomNames(t *testing.T) {
	h, _ := inMemory()
	looked := 0
	for i := range 3 * int(loginAddresses.Limit) {
		if attempt(h, attacker, fmt.Sprint("made-up-", i), "123456") == http.StatusUnauthorized {
			looked++
		}
	}
	if looked != int(loginAddresses.Limit) {
		t.Errorf("%d accounts were tried from one address, want %v", looked, loginAddresses.Limit)
	}
	for _, name := range []string{"", "a b", "\xff", "a\x00", strings.Repeat("a", 300)} {
		if got := attempt(h, owner, name, "123456"); got != http.StatusForbidden {
			t.Errorf("%.20q: got %d, want 403", name, got)
		}
	}
}
