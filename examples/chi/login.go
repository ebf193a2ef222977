package main

import (
	"net/http"
	"time"

	"golang.org/x/text/secure/precis"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// A login must pass two limits. Failed logins stay counted.
var (
	// logins counts the failures of an account. The third makes strangers wait for a minute,
	// and each further one twice as long, up to an hour. An address from which the owner has
	// logged in before has a count apart from theirs, so they cannot lock the owner out.
	logins = limiter.Policy{Name: "login", Algorithm: limiter.Attempts, Limit: 3, Period: 24 * time.Hour, BlockFor: time.Minute, BlockMax: time.Hour}
	// loginAddresses bounds the accounts that one address can try a password on, and the
	// rows that made-up names can write.
	loginAddresses = limiter.PerHour("login-address", 50)
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

// guarded is middleware for logins. Both limits count before the password is looked at.
func guarded(l *limiter.Limiter) []func(http.Handler) http.Handler {
	return []func(http.Handler) http.Handler{
		httplimit.New(l, httplimit.Each(client.Key, loginAddresses), failed),
		httplimit.NewAttempts(l, func(r *http.Request) (a httplimit.Attempt, err error) {
			if a.Policy, a.Key = logins, account(r); a.Key == "" {
				return a, httplimit.ErrNoKey
			}
			a.From, err = client.Key(r)
			return a, err
		}),
	}
}
