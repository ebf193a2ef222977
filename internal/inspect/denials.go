package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// slot is the shortest time that denials are kept by: pglimit_denial.slot_us.
const slot = 10 * time.Minute

// DenialQuery is a question to Denials.
type DenialQuery struct {
	Since  time.Duration // how far back, from ten minutes to ten years
	Policy string        // "": all
	Slots  int           // at most so many, from 1 to 1000; each is whole ten minutes long
	Keys   int           // at most so many of the keys denied most, from 1 to 1000
}

// Denials are the denials of some time, as JSON too.
type Denials struct {
	Width float64      `json:"width_s"` // of a slot
	Slots []DenialSlot `json:"slots"`   // without gaps, the oldest first
	Keys  []Denied     `json:"keys"`    // the most denied first; key "" is all keys for which there was no room
}

// DenialSlot is the denials from Start until a width later.
type DenialSlot struct {
	Start    time.Time `json:"start"`
	Denials  int64     `json:"denials"`
	Shadowed int64     `json:"shadowed"` // of these, those that a shadow policy let pass
	Units    float64   `json:"units"`    // requested by them
}

// Denials returns the denials since a time, for a chart and by key. Programs that keep
// denials write them about once a minute.
func (i *Inspector) Denials(ctx context.Context, q DenialQuery) (all Denials, err error) {
	switch {
	case q.Since < slot || q.Since > 10*365*day:
		return all, store.Invalid("since", q.Since.String(), "must be from 10m to ten years")
	case q.Slots < 1 || q.Slots > 1000:
		return all, store.Invalid("slots", fmt.Sprint(q.Slots), "must be from 1 to 1000")
	case q.Keys < 1 || q.Keys > 1000:
		return all, store.Invalid("keys", fmt.Sprint(q.Keys), "must be from 1 to 1000")
	}
	err = i.read(ctx, func(tx pgx.Tx) error {
		now, err := queries.Clock(ctx, tx, nil)
		if err != nil {
			return err
		}
		from, width, n := slots(now, q)
		until := from + int64(n)*width
		all.Width = float64(width) / 1e6
		all.Slots = make([]DenialSlot, n)
		for k := range all.Slots {
			all.Slots[k].Start = time.UnixMicro(from + int64(k)*width)
		}
		counts, err := queries.InspectDenialSlots(ctx, tx, db.InspectDenialSlotsParams{FromUs: from, UntilUs: until, WidthUs: width, Policy: q.Policy})
		if err != nil {
			return err
		}
		for _, c := range counts {
			s := &all.Slots[c.Slot]
			s.Denials, s.Shadowed, s.Units = c.Denials, c.Shadowed, c.Units
		}
		keys, err := queries.InspectDenialKeys(ctx, tx, db.InspectDenialKeysParams{FromUs: from, UntilUs: until, Policy: q.Policy, MaxRows: int64(q.Keys)})
		all.Keys = make([]Denied, len(keys))
		for n, k := range keys {
			all.Keys[n] = Denied{k.Policy, algorithm.Name(k.Algorithm), k.Key, k.Denials, k.Shadowed, k.Units, time.UnixMicro(k.LastDeniedAtUs)}
		}
		return err
	})
	return all, err
}

// slots returns the first slot's start, the width and the number of slots, in
// microseconds. The last slot has now in it, and the first the time q.Since before.
func slots(now int64, q DenialQuery) (from, width int64, n int) {
	unit := slot.Microseconds()
	first := (now - q.Since.Microseconds()) / unit
	count := now/unit - first + 1
	each := (count + int64(q.Slots) - 1) / int64(q.Slots)
	n = int((count + each - 1) / each)
	return (now/unit + 1 - int64(n)*each) * unit, each * unit, n
}
