package limiter

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/valid"
)

// GrantOptions are the options of a Grant. The zero value is valid.
type GrantOptions struct {
	// Expires is when the units that are left are lost: truncated to microseconds, after now
	// and before the year 10000. Default: the zero time, never.
	Expires time.Time
	// Priority orders the lots: a lower one is spent first. Of equal ones the lot that expires
	// first is, then the older. It is from -1,000 to 1,000. Default: 0.
	Priority int
	// Source says what the units are, for Usage: such as "invoice 1042" or "trial". It is up to
	// 255 bytes of UTF-8 without NUL, and stored as it is. Default: none.
	Source string
	// Note is Request.Note, of a Policy with a Ledger. Default: none.
	Note string
	// IdempotencyKey, if not empty, makes a repeated Grant add its units once, as
	// Request.IdempotencyKey does for Do. A key has one set of them for both.
	IdempotencyKey string
}

// Lot is what is left of the units of one Grant.
type Lot struct {
	Number   int64     `json:"number"` // of the key's grants, from 1
	Units    float64   `json:"units"`
	Expires  time.Time `json:"expires,omitzero"` // zero: never
	Priority int       `json:"priority,omitempty"`
	Source   string    `json:"source,omitempty"`
}

// Grant adds prepaid units to a key under a policy of the algorithm Balance. What the key owes
// is paid first, and the rest is a lot, which Allow and the other verbs spend from. The Result
// is Allowed, Granted is units, and Remaining is what can be spent now. units are from 1e-9 to
// 2^53. Use whole units, such as cents: sums of fractions round.
//
//   - Lots are spent in the order of Priority, then of their ends. One request may spend from
//     several.
//   - A lot can be spent until it expires, by the database's clock. What is left then is lost,
//     and Usage counts it as Expired.
//   - A key has at most 100 lots with units. A Grant above that is an ErrInvalid, unless its
//     units all pay the debt.
//   - To roll units over, grant them: read Usage, and Grant what of it may be used on, with an
//     IdempotencyKey that names the period.
//   - In a transaction, by InTx, units and the payment for them are recorded both or neither.
//   - Policies of other algorithms return ErrUnsupported. Policy.OnError does not apply.
func (e *engine) Grant(ctx context.Context, p Policy, key string, units float64, o GrantOptions) (Result, error) {
	in := p.Request(key, units)
	in.IdempotencyKey, in.Note = o.IdempotencyKey, o.Note
	lot, err := o.lot(e.clockTime())
	if err == nil && !valid.Units(units) {
		err = store.Invalid("units", amount(units), "must be from 1e-9 to 2^53")
	}
	if err != nil {
		return Result{}, e.refuse(ctx, verbGrant, in, err)
	}
	c := e.call(verbGrant, in)
	c.op.Lot, c.sent = lot, true
	return e.decide(ctx, c)
}

// The bounds of GrantOptions.
const (
	maxPriority = 1000
	maxSource   = 255
	maxNote     = 255 // of a Request too
)

var maxExpires = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)

// lot returns the lot that a Grant at that time makes.
func (o *GrantOptions) lot(now time.Time) (*store.Granting, error) {
	lot := &store.Granting{Ends: algorithm.Never, Priority: int64(o.Priority), Source: o.Source}
	if !o.Expires.IsZero() {
		lot.Ends = o.Expires.UnixMicro()
	}
	switch {
	case lot.Ends <= now.UnixMicro(), !o.Expires.Before(maxExpires):
		return nil, lotIsOver(o.Expires)
	case o.Priority < -maxPriority || o.Priority > maxPriority:
		return nil, store.Invalid("Priority", strconv.Itoa(o.Priority), "must be from -1000 to 1000")
	}
	return lot, valid.Text("Source", o.Source, maxSource)
}

func lotIsOver(expires time.Time) error {
	return store.Invalid("Expires", expires.UTC().Format(time.RFC3339Nano), "must be after now and before the year 10000, or zero for never")
}

// refusedGrant returns the error of a Grant that changed nothing, or nil.
func refusedGrant(op *store.Op) error {
	switch op.Lot.Refused {
	case algorithm.LotIsOver:
		return lotIsOver(time.UnixMicro(op.Lot.Ends))
	case algorithm.TooManyLots:
		return store.Invalid("units", amount(op.Units), fmt.Sprintf("need a lot, and the key has %d with units, the most: grant larger ones, or let some be spent", algorithm.MaxLots))
	}
	return nil
}

// validateBalanceVerb returns an error for a call that a Balance does not serve, and for one that
// only a Balance does.
func validateBalanceVerb(v *verb, in *Request) error {
	switch balance := in.Policy.Algorithm == Balance; {
	case v == verbGrant && !balance:
		return fmt.Errorf("%w: Grant on %s: it needs a policy of %s", store.ErrUnsupported, in.Policy.Algorithm, Balance)
	case !balance:
		return nil
	case in.Floor != 0:
		return store.Invalid("Floor", amount(in.Floor), "is a share of a burst, which a balance has none of: leave it 0")
	}
	return nil
}

// validateBalance validates the fields of a policy that Validate has not.
func (p Policy) validateBalance() error {
	const none = "is not for balance: leave it 0"
	switch {
	case p.Algorithm != Balance:
		return nil
	case p.Limit != 0:
		return p.bad("Limit", p.Limit, none+"; Grant adds units")
	case p.Period != 0:
		return p.bad("Period", p.Period, none+"; GrantOptions.Expires ends units")
	case p.Burst != 0:
		return p.bad("Burst", p.Burst, none)
	case p.Lease != 0:
		return p.bad("Lease", p.Lease, none)
	case p.MaxKeys != 0:
		return p.bad("MaxKeys", p.MaxKeys, none)
	case p.OnError == FailLocal:
		return p.bad("OnError", p.OnError, "must be FailClosed or FailOpen: a process has no share of a balance")
	}
	return nil
}

// stand sets what a Usage says of a balance.
func (u *Usage) stand(a *algorithm.Account) {
	u.Spent, u.Granted, u.Expired, u.Debt = a.Spent-u.Reserved, a.Granted, a.Expired, a.Debt
	for _, l := range a.Lots {
		lot := Lot{Number: l.Number, Units: l.Left, Priority: int(l.Priority), Source: l.Source}
		if l.Ends != algorithm.Never {
			lot.Expires = time.UnixMicro(l.Ends)
		}
		u.Lots = append(u.Lots, lot)
	}
}
