package dashboard

import (
	"context"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// Source is where the page's data come from: a [Database]. Its methods are called
// concurrently. ctx ends when the answer is not needed any more, and after Config.Timeout.
//
// An error of limiter.ErrInvalid, limiter.ErrUnsupported or limiter.ErrNoPolicy rejects
// the request. All others mean that the database does not answer.
type Source interface {
	// Policies returns the policies in the database, by name.
	Policies(ctx context.Context) (Policies, error)
	// History returns the last changes of a policy and its overrides, or of all if
	// policy is empty, newest first, at most limit.
	History(ctx context.Context, policy string, limit int) ([]policies.Change, error)
	// Overrides returns the first overrides of a policy, by key.
	Overrides(ctx context.Context, policy string) (Overrides, error)
	// Current returns what an edit changes. Facts returns what the database has since then of
	// the edit's policy, or of its override's key, and how many of its keys are above burst.
	Current(ctx context.Context, e Edit) (Current, error)
	Facts(ctx context.Context, e Edit, algorithm limiter.Algorithm, since time.Time, burst float64) (Facts, error)
	// Keys returns the first keys of a query.
	Keys(ctx context.Context, q Query) (Keys, error)
	// Search returns the first keys that begin with a text, which is not empty, as stored.
	Search(ctx context.Context, prefix string) (Names, error)
	// Denials returns the denials of all keys, or of one, by slot and policy.
	Denials(ctx context.Context, q DenialQuery) (Denials, error)
	// Key returns all that is stored of one key.
	Key(ctx context.Context, key Ref) (Key, error)
	// Why returns what limits one key, or limited it at a time, and its denials of the day
	// before. at is zero for now.
	Why(ctx context.Context, key Ref, at time.Time) (inspect.Why, error)
	// Doctor examines the database and the tables.
	Doctor(ctx context.Context) (doctor.Report, error)

	// Block blocks a key for d, Unblock lifts a block, and Reset deletes what a key has
	// used and its block. found reports whether there was something to lift or delete.
	Block(ctx context.Context, t Target, d time.Duration) error
	Unblock(ctx context.Context, t Target) (found bool, err error)
	Reset(ctx context.Context, t Target) (found bool, err error)
	// Apply makes an edit and returns the version after it.
	Apply(ctx context.Context, e Edit) (version int64, err error)
}

// The answers of a Source, which are those of the HTTP API too. At is the time of the
// database's clock, and no list is nil.

// Policies are the policies in the database.
type Policies struct {
	At        time.Time         `json:"at"`
	Version   int64             `json:"version"` // of all policies and overrides
	Policies  []policies.Stored `json:"policies"`
	Overrides map[string]int    `json:"overrides"` // by policy: keys with an override that has not ended
}

// Overrides are the first overrides of a policy.
type Overrides struct {
	At        time.Time          `json:"at"`
	Overrides []inspect.Override `json:"overrides"`
	More      bool               `json:"more"`
}

// Names are keys in their order.
type Names struct {
	Keys []string `json:"keys"`
	More bool     `json:"more"`
}

// Keys are rows of keys, as they are stored. A key whose row the janitor deleted can still
// have denials.
type Keys struct {
	At   time.Time     `json:"at"`
	Rows []inspect.Key `json:"rows"`
	More bool          `json:"more"` // the query has more rows
}

// Denials are the denials of a span of time.
type Denials struct {
	At    time.Time    `json:"at"`
	Hours int          `json:"hours"`  // the span, which ends with the present slot
	SlotS float64      `json:"slot_s"` // length of a slot
	Slots []DenialSlot `json:"slots"`  // those with denials, in any order
}

// DenialSlot is the denials of a policy in one slot.
type DenialSlot struct {
	Start    time.Time `json:"start"`
	Policy   string    `json:"policy"`
	Denials  int64     `json:"denials"`
	Shadowed int64     `json:"shadowed"` // of these, those that a shadow policy let pass
	// Blocked, AboveBurst and Overloaded are those by a block, of a cost that can never fit,
	// and for which too many callers waited. All others are by the limit.
	Blocked    int64   `json:"blocked"`
	AboveBurst int64   `json:"above_burst"`
	Overloaded int64   `json:"overloaded"`
	Units      float64 `json:"units"` // requested by them
}

// Key is all that is stored of one key.
type Key struct {
	At     time.Time  `json:"at"`
	Stored string     `json:"stored"` // the key as stored
	Usage  []KeyUsage `json:"usage"`  // of the policies under which it has a row and sums
	inspect.Found
}

// KeyUsage has the units that a key spent under a policy on each of the last 30 days of UTC.
type KeyUsage struct {
	Policy string              `json:"policy"`
	Sums   []policies.UsageSum `json:"sums"` // of days on which units were spent or given back
}
