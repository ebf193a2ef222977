package policies

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/store"
)

// LedgerEntry is what one decision changed about a balance: see limiter.Policy.Ledger.
type LedgerEntry struct {
	// Number rises with each entry of the key. Some numbers are left out.
	Number int64     `json:"number"`
	At     time.Time `json:"at"` // of the decision, in UTC
	// Kind is grant, spend, charge, reserve, settle, cancel, return (a reservation expired), refund,
	// undo, expire (of lots), reset, or open: something changed without an entry, and Units and Lots
	// are what there was before the next one.
	Kind  string  `json:"kind"`
	Units float64 `json:"units"` // added to the balance: negative if they were spent or lost
	Left  float64 `json:"left"`  // the balance after it: what the lots have, less the debt
	// Lots are those that gave or got units, in the order in which they are spent, and last the debt.
	Lots []LotUnits `json:"lots"`
	Note string     `json:"note,omitempty"` // of the request, or of that which made the reservation
	// Reservation is the ID of the reservation that was made or ended.
	Reservation string `json:"reservation,omitempty"`
	// IdempotencyKey is that of the request; with Config.KeySecret its HMAC.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

// LotUnits is what a lot got, or gave if Units are negative. Number 0 is the debt: what is spent
// without units gives, and what pays it gets.
type LotUnits struct {
	Number int64   `json:"number"`
	Units  float64 `json:"units"`
	Source string  `json:"source,omitempty"`
}

// LedgerPage says which entries Ledger returns. The zero value is the newest 100.
type LedgerPage struct {
	Before int64     // only entries with a lower number: that of the last one of the page before. Default: 0, all
	Since  time.Time // only entries of that moment or later. Default: the zero time, all
	Limit  int       // entries at most, from 1 to 10,000. Default: 0, which is 100
}

const (
	usualEntries = 100
	mostEntries  = 10_000
)

// Ledger returns the entries of a key's balance under a policy, newest first. From the last entry of
// the kind open on, or from the first, the sum of their Units is the balance, and Left is the sum up
// to an entry. A lot that has expired is entered by the key's next decision. The entries of one moment
// are read together.
//
// They are those of the policy's name, whether it exists or not. Without any Ledger returns none. It
// locks nothing. Policies of New have no ledgers: Ledger returns limiter.ErrUnsupported. It returns
// limiter.ErrInvalid for a Limit out of its range or a negative Before.
func (p *Policies) Ledger(ctx context.Context, policy, key string, page LedgerPage) ([]LedgerEntry, error) {
	d, ok := p.rows.(*database)
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: Ledger of policies without a database", store.ErrUnsupported)
	case page.Limit < 0 || page.Limit > mostEntries:
		return nil, store.Invalid("Limit", strconv.Itoa(page.Limit), "must be from 1 to 10000, or 0 for 100")
	case page.Before < 0:
		return nil, store.Invalid("Before", strconv.FormatInt(page.Before, 10), "must be the Number of an entry, or 0")
	}
	in := db.LedgerListParams{Policy: policy, Key: keys.Stored(key, p.config.KeySecret), Before: page.Before, MaxRows: int64(page.Limit)}
	if in.Before == 0 {
		in.Before = math.MaxInt64
	}
	if in.MaxRows == 0 {
		in.MaxRows = usualEntries
	}
	if !page.Since.IsZero() {
		in.SinceUs = page.Since.UnixMicro()
	}
	var rows []db.LedgerListRow
	err := d.statement(ctx, func(ctx context.Context, tx db.DBTX) (err error) {
		rows, err = d.statements.LedgerList(ctx, tx, in)
		return err
	})
	if err == nil && rows == nil {
		err = ctx.Err()
	}
	entries := make([]LedgerEntry, len(rows))
	for i := range rows {
		entries[i] = entryOf(&rows[i], in.Policy, in.Key)
	}
	return entries, err
}

func entryOf(r *db.LedgerListRow, policy, key string) LedgerEntry {
	e := LedgerEntry{Number: r.Number, At: timeOf(r.AtUs), Kind: r.Kind, Units: r.Units, Left: r.LeftUnits, Note: r.Note, IdempotencyKey: r.IdempotencyKey, Lots: []LotUnits{}}
	if r.Reservation != "" {
		e.Reservation = store.ReservationID{Algorithm: algorithm.Balance, Policy: policy, Key: key, ID: r.Reservation}.Public()
	}
	for i := range min(len(r.Lots), len(r.LotUnits), len(r.Sources)) {
		e.Lots = append(e.Lots, LotUnits{r.Lots[i], r.LotUnits[i], r.Sources[i]})
	}
	return e
}
