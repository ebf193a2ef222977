package dashboard

import (
	"context"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Source is where the page's data come from. Its methods are called concurrently. ctx
// ends when nobody waits for the answer any more, and after Config.Timeout.
//
// An error of limiter.ErrInvalid, limiter.ErrUnsupported or limiter.ErrNoPolicy rejects
// the request. All others mean that the database does not answer.
type Source interface {
	// Policies returns the policies in the database, by name.
	Policies(ctx context.Context) (Policies, error)
	// History returns the last changes of a policy and its overrides, or of all if
	// policy is empty, newest first, at most limit.
	History(ctx context.Context, policy string, limit int) ([]limiter.PolicyChange, error)
	// Keys returns the first keys of a query.
	Keys(ctx context.Context, q Query) (Keys, error)
	// Denials returns the denials of the last day by slot and policy.
	Denials(ctx context.Context) (Denials, error)
	// Key returns all that is stored of one key.
	Key(ctx context.Context, key Ref) (Key, error)
	// Doctor examines the database and the tables.
	Doctor(ctx context.Context) (Report, error)

	// Block blocks a key for d, Unblock lifts a block, and Reset deletes what a key has
	// used and its block. found reports whether there was something to lift or delete.
	Block(ctx context.Context, t Target, d time.Duration) error
	Unblock(ctx context.Context, t Target) (found bool, err error)
	Reset(ctx context.Context, t Target) (found bool, err error)
}

// Ref names a key.
type Ref struct {
	Key string `json:"key"`
	// Stored says that Key is as the tables have it. They have the HMAC of a caller's
	// key if the limiters have a KeySecret; otherwise Stored makes no difference.
	Stored bool `json:"stored"`
}

// Target names a key under a policy and an algorithm.
type Target struct {
	Ref
	Policy    string
	Algorithm limiter.Algorithm
}

// Order selects which keys are first.
type Order string

// The orders. Within ByShare, keys that are blocked come first.
const (
	ByShare   Order = "share"   // largest share of the burst in use
	ByDenials Order = "denials" // most denials in the last day
	ByRecent  Order = "recent"  // last decision
)

// Query selects keys.
type Query struct {
	Order  Order
	Policy string // empty: all
	Prefix string // of the key as stored; empty: all
	Limit  int    // rows at most
}

// Policies are the policies in the database.
type Policies struct {
	At       time.Time // of the database's clock
	Version  int64     // of all policies and overrides
	Policies []Policy
}

// Policy is a policy in the database.
type Policy struct {
	limiter.StoredPolicy
	Overrides int // keys with an override that has not ended
}

// Keys are rows of keys.
type Keys struct {
	At   time.Time `json:"at"` // of the database's clock
	Rows []Row     `json:"rows"`
	// More says that the query has more rows.
	More bool `json:"more"`
}

// Row is a key under one policy and algorithm. A key whose row the janitor deleted can
// still have denials; then UpdatedAt is zero, and Level, Burst, Share and Remaining are
// nil.
type Row struct {
	Policy    string            `json:"policy"`
	Algorithm limiter.Algorithm `json:"algorithm"`
	Key       string            `json:"key"`                 // as stored
	Level     *float64          `json:"level,omitempty"`     // units in use now
	Burst     *float64          `json:"burst,omitempty"`     // the largest level; nil if only a block made the row
	Share     *float64          `json:"share,omitempty"`     // Level / Burst; above 1 after a limit was lowered
	Remaining *float64          `json:"remaining,omitempty"` // units; 0 while the key is blocked
	// BlockedUntil is zero if the key is not blocked.
	BlockedUntil time.Time `json:"blocked_until,omitzero"`
	UpdatedAt    time.Time `json:"updated_at,omitzero"` // the last decision
	EmptyAt      time.Time `json:"empty_at,omitzero"`   // if the key is not used until then
	Reservations int64     `json:"reservations"`        // open ones
	Denials      int64     `json:"denials"`             // of the last day
	LastDenied   time.Time `json:"last_denied_at,omitzero"`
}

// Denials are the denials of the last day.
type Denials struct {
	At    time.Time     // of the database's clock
	Slot  time.Duration // length of a slot
	Slots []DenialSlot  // those with denials, in any order
}

// DenialSlot is the denials of a policy in one slot.
type DenialSlot struct {
	Start    time.Time `json:"start"`
	Policy   string    `json:"policy"`
	Denials  int64     `json:"denials"`
	Shadowed int64     `json:"shadowed"` // of these, those that a shadow policy let pass
	Units    float64   `json:"units"`    // requested by them
}

// Key is all that is stored of one key.
type Key struct {
	At           time.Time          `json:"at"`     // of the database's clock
	Stored       string             `json:"stored"` // the key as stored
	Rows         []Row              `json:"rows"`   // by policy and algorithm
	Reservations []Reservation      `json:"reservations"`
	Overrides    []limiter.Override `json:"-"`
	Denials      []DenialSlot       `json:"denials"` // of the last day, newest first
}

// Reservation is an open reservation.
type Reservation struct {
	ID        string            `json:"id"`
	Policy    string            `json:"policy"`
	Algorithm limiter.Algorithm `json:"algorithm"`
	Units     float64           `json:"units"`
	Expires   time.Time         `json:"expires_at"`
}

// Report is the doctor's report.
type Report struct {
	At     time.Time `json:"at"`
	Checks []Check   `json:"checks"`
}

// Check is the result of one of the doctor's checks.
type Check struct {
	Name    string   `json:"name"`
	Status  string   `json:"status"` // ok, warn or fail
	Message string   `json:"message"`
	Fix     string   `json:"fix,omitempty"` // the next step: SQL, a command or a sentence
	Details []string `json:"details,omitempty"`
}
