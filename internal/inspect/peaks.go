package inspect

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
)

// PeaksQuery is a question to Peaks.
type PeaksQuery struct {
	Policy    string
	Algorithm algorithm.Name
	// Shadowed counts only what a shadow policy let pass.
	Shadowed bool
	// Window is the time to add up a key's denials over. Up to ten minutes it is one slot.
	Window time.Duration
	// Calendar, if not nil, adds them up by its periods instead.
	Calendar *algorithm.Calendar
}

// Peaks are the most units that a policy denied to each key within a window.
type Peaks struct {
	Keys           int64 // that were denied
	KeysWithRow    int64 // under the policy, in the view pglimit_keys
	KeysOverridden int64 // left out: an override sets another limit
	Denials        int64 // of Keys
	WithoutKey     int64 // denials left out: of all keys for which there was no room
	First, Last    time.Time
	P50, P999      float64 // units: at least this share of Keys had no more
	Max            float64
}

// Peaks returns the peaks of all denials that are kept. Programs that keep denials write
// them about once a minute, into the slot of ten minutes in which they write. First and Last
// are the start of the first slot and the end of the last; zero without denials.
func (i *Inspector) Peaks(ctx context.Context, q PeaksQuery) (p Peaks, err error) {
	err = i.read(ctx, func(tx pgx.Tx) error {
		bounds, before := []int64{}, max(slot, q.Window).Microseconds()-1
		if q.Calendar != nil {
			first, err := queries.InspectDenialFirst(ctx, tx, db.InspectDenialFirstParams{Policy: q.Policy, Algorithm: string(q.Algorithm)})
			if err != nil {
				return err
			}
			now, err := queries.Clock(ctx, tx, nil)
			if err != nil {
				return err
			}
			bounds, before = ends(q.Calendar, first, now), math.MaxInt64
		}
		row, err := queries.InspectDenialPeaks(ctx, tx, db.InspectDenialPeaksParams{
			OnlyShadowed: q.Shadowed, Policy: q.Policy, Algorithm: string(q.Algorithm), Bounds: bounds, BeforeUs: before,
		})
		if err != nil {
			return err
		}
		p = Peaks{
			Keys: row.Keys, KeysOverridden: row.KeysOverridden, Denials: row.Denials, WithoutKey: row.DenialsWithoutKey,
			P50: row.P50, P999: row.P999, Max: row.Most,
		}
		if p.Keys > 0 {
			p.First, p.Last = time.UnixMicro(row.FirstSlotUs).UTC(), time.UnixMicro(row.LastSlotUs).Add(slot).UTC()
		}
		p.KeysWithRow, err = queries.InspectKeyCount(ctx, tx, db.InspectKeyCountParams{Policy: q.Policy, Algorithm: string(q.Algorithm)})
		return err
	})
	return p, err
}

// ends returns the ends of a calendar's periods in (from, until], in microseconds, if from
// is not negative.
func ends(c *algorithm.Calendar, from, until int64) []int64 {
	all := []int64{}
	for at := from; from >= 0; {
		_, end, next := c.Near(at)
		if end <= at {
			end = next
		}
		if end > until {
			break
		}
		all, at = append(all, end), end
	}
	return all
}
