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

// TestLoginOwnerGetsIn: whoever guesses at an account from another address does not deny
// its owner, not even from several addresses.
func TestLoginOwnerGetsIn(t *testing.T) {
	h, _ := inMemory()
	for range 1000 {
		attempt(h, attacker, "alice", "guess")
	}
	if got := attempt(h, owner, "alice", "wonderland"); got != http.StatusOK {
		t.Errorf("after guesses from one address the owner got %d", got)
	}
	for i := range 40 {
		for range 10 {
			attempt(h, fmt.Sprint("192.0.2.", i), "alice", "guess")
		}
	}
	if got := attempt(h, owner, "alice", "wonderland"); got != http.StatusOK {
		t.Errorf("after guesses from 40 addresses the owner got %d", got)
	}
}

// TestLoginManyAddresses: guesses from many addresses stay below the account's own limit.
// It has no block, so the owner gets in as soon as one unit is back.
func TestLoginManyAddresses(t *testing.T) {
	h, now := inMemory()
	looked := 0
	for i := range 200 {
		for range 5 {
			if attempt(h, fmt.Sprint("192.0.2.", i), "alice", "guess") == http.StatusUnauthorized {
				looked++
			}
		}
	}
	if looked != int(loginAccounts.Limit) {
		t.Errorf("%d guesses were looked at, want %v", looked, loginAccounts.Limit)
	}
	*now = now.Add(loginAccounts.Period / time.Duration(loginAccounts.Limit))
	if got := attempt(h, owner, "alice", "wonderland"); got != http.StatusOK {
		t.Errorf("when a unit is back the owner got %d", got)
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
