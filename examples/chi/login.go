package main

import (
	"net/http"
	"time"

	"golang.org/x/text/secure/precis"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// A login must pass three limits, all or none. Failed logins stay counted.
var (
	// logins is strict. It counts an account from one address, so an attacker elsewhere
	// does not use up the owner's attempts.
	logins = limiter.Policy{Name: "login", Algorithm: limiter.SlidingWindowCounter, Limit: 2, Period: time.Hour}
	// loginAddresses bounds the accounts that one address can try a password on, and the
	// rows that made-up names can write.
	loginAddresses = limiter.PerHour("login-address", 50)
	// loginAccounts bounds the guesses at one account from many addresses. It is much
	// larger than logins and has no BlockFor, because whoever uses it up denies the owner
	// too, until a unit is back: after 36 seconds.
	loginAccounts = limiter.PerHour("login-account", 100)
)

// failed gives a login back unless the handler answers 401.
var failed = httplimit.WithRefundIf(func(status int) bool { return status != http.StatusUnauthorized })

// maxName is the longest name of an account in bytes.
const maxName = 256

// account returns the account that a login is for, or "" if no account can have that name.
// RFC 8265 maps all spellings of a name to one: Alice, ALICE and full-width letters are
// alice. Accounts are counted and looked up by this form, so that no spelling is an
// attempt more.
func account(r *http.Request) string {
	name, _, _ := r.BasicAuth()
	if len(name) > maxName {
		return ""
	}
	name, err := precis.UsernameCaseMapped.String(name)
	if err != nil {
		return ""
	}
	return name
}

// loginLimits returns the limits of a login. They count before the password is looked at.
func loginLimits(r *http.Request) ([]limiter.Request, error) {
	name := account(r)
	if name == "" {
		return nil, httplimit.ErrNoKey
	}
	address, err := client.Key(r)
	if err != nil {
		return nil, err
	}
	return []limiter.Request{
		logins.Request(limiter.JoinKey(name, address), 1),
		loginAddresses.Request(address, 1),
		loginAccounts.Request(name, 1),
	}, nil
}
