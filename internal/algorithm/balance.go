package algorithm

import (
	"cmp"
	"math"
	"slices"
)

// MaxLots is the largest number of lots that a balance has at once.
const MaxLots = 100

// Lot is what is left of units that were granted together.
type Lot struct {
	Number   int64 // of the key's grants, from 1
	Left     float64
	Ends     int64 // from then on it cannot be spent; Never: it does not expire
	Priority int64 // lower is spent first
	Source   string
}

// Account is the prepaid units of a Balance. Lots are in the order in which they are spent: by
// Priority, Ends and Number. Granted and Debt are what there was in all, and so are Spent, Expired
// and what is left.
type Account struct {
	Lots                    []Lot
	Debt                    float64 // spent without units
	Granted, Spent, Expired float64
	Made                    int64 // the number of the last lot
	Parts                   []Lot // the last decision: what it spent of each lot, in their order, and of lot 0 as a debt
}

// Spent is the first lot that a decision spent from. Its Lot is 0 if it made a debt alone.
type Spent struct{ Lot, Ends, Priority int64 }

// left returns the sum of what lots have: that of those after the first, and then the first.
func left(lots []Lot) float64 {
	if len(lots) == 0 {
		return 0
	}
	later := 0.0
	for _, l := range lots[1:] {
		later += l.Left
	}
	return lots[0].Left + later
}

// live returns the lots that have not expired, and what the others have.
func (b *Account) live(at int64) (lots []Lot, expired float64) {
	if !slices.ContainsFunc(b.Lots, func(l Lot) bool { return l.Ends <= at }) {
		return b.Lots, 0
	}
	for _, l := range b.Lots {
		if l.Ends > at {
			lots = append(lots, l)
		} else {
			expired += l.Left
		}
	}
	return lots, expired
}

// expire drops lots that have expired.
func (b *Account) expire(at int64) {
	lots, expired := b.live(at)
	b.Lots, b.Expired = lots, b.Expired+expired
}

// At returns the balance at a time, as a copy.
func (b *Account) At(at int64) *Account {
	c := b.Clone().(*Account)
	c.expire(at)
	return c
}

// Used returns the debt less the units left: it is negative while there are any.
func (b *Account) Used(_ *Rules, _, at int64) float64 {
	lots, _ := b.live(at)
	return b.Debt - left(lots)
}

func (b *Account) Advance(_ *Rules, _, at int64) { b.expire(at) }

func (b *Account) Deny(_ *Rules, _, at int64) { b.expire(at) }

// Put spends units, which the debt may grow by.
func (b *Account) Put(_ int64, units float64) {
	all := left(b.Lots)
	b.Spent, b.Debt = b.Spent+units, b.Debt+max(0, units-all)
	before, kept := 0.0, make([]Lot, 0, len(b.Lots))
	b.Parts = nil
	for _, l := range b.Lots {
		part := l
		part.Left = max(0, min(l.Left, units-before))
		before += l.Left
		if l.Left -= part.Left; l.Left > 0 && units < all {
			kept = append(kept, l)
		}
		if part.Left > 0 {
			b.Parts = append(b.Parts, part)
		}
	}
	if units > all {
		b.Parts = append(b.Parts, Lot{Left: units - all})
	}
	b.Lots = kept
}

// Charge spends all units, whatever the overdraft.
func (b *Account) Charge(_ *Rules, _, at int64, units float64) float64 {
	b.expire(at)
	b.Put(at, units)
	return units
}

// Refusal is why a Grant changed nothing.
type Refusal uint8

// The values of Refusal.
const (
	Accepted    Refusal = iota
	LotIsOver           // its end is past
	TooManyLots         // there are MaxLots
)

// Grant pays the debt, and makes a lot of the rest of its Left.
func (b *Account) Grant(at int64, l Lot) Refusal {
	b.expire(at)
	units, pays := l.Left, min(b.Debt, l.Left)
	switch l.Left = units - pays; {
	case l.Ends <= at:
		return LotIsOver
	case l.Left > 0 && len(b.Lots) >= MaxLots:
		return TooManyLots
	}
	b.Debt, b.Granted, b.Made = b.Debt-pays, b.Granted+units, b.Made+1
	if l.Number = b.Made; l.Left > 0 {
		b.add(l)
	}
	return Accepted
}

func (b *Account) add(l Lot) {
	b.Lots = append(slices.Clone(b.Lots), l)
	slices.SortFunc(b.Lots, func(a, b Lot) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Ends, b.Ends), cmp.Compare(a.Number, b.Number))
	})
}

// Refund gives back up to the units spent: to the debt, then to the lot that is spent last. If
// there is no lot it makes one that does not expire.
func (b *Account) Refund(_ *Rules, _, at int64, units float64) float64 {
	b.expire(at)
	return b.give(units, len(b.Lots)-1, Lot{Number: b.Made + 1, Ends: Never, Source: "refund"})
}

// Undo gives back to the debt, then to the lot that was spent from first, which it makes again
// if that was used up. If that has expired, nothing goes back.
func (b *Account) Undo(_ *Rules, _, at int64, g Grant, _ *Rules, units float64) float64 {
	b.expire(at)
	switch {
	case g.Lot == 0:
		return b.give(units, len(b.Lots)-1, Lot{Number: b.Made + 1, Ends: Never, Source: "undo"})
	case g.EndsAt <= at:
		return 0
	}
	i := slices.IndexFunc(b.Lots, func(l Lot) bool { return l.Number == int64(g.Lot) })
	return b.give(units, i, Lot{Number: int64(g.Lot), Ends: g.EndsAt, Priority: int64(g.Priority), Source: "undo"})
}

// give gives back to the debt, then to the i-th lot. If i is negative it makes the lot l.
func (b *Account) give(units float64, i int, l Lot) float64 {
	back := min(units, b.Spent)
	pays := min(b.Debt, back)
	b.Spent, b.Debt = b.Spent-back, b.Debt-pays
	switch l.Left = back - pays; {
	case l.Left == 0:
	case i >= 0:
		b.Lots = slices.Clone(b.Lots)
		b.Lots[i].Left += l.Left
	default:
		b.Made = max(b.Made, l.Number)
		b.add(l)
	}
	return back
}

// Settle gives back what a reservation took of lots, the last taken first, or spends what is above
// it. Units of a lot that has expired are lost. The others pay the debt, and the rest goes to its
// lot, which it makes again if that was used up. What was taken as a debt goes back as by a Refund.
func (b *Account) Settle(_ *Rules, _, at int64, h Reservation, actual float64, _ bool) float64 {
	b.expire(at)
	if actual > h.Units {
		b.Put(at, actual-h.Units)
		return 0
	}
	back, stay := min(h.Units-actual, b.Spent), max(actual, h.Units-b.Spent)
	if back <= 0 {
		return 0
	}
	before, live, lost := make([]float64, len(h.Parts)), 0.0, 0.0
	b.Lots = slices.Clone(b.Lots)
	for i := 1; i < len(before); i++ {
		before[i] = before[i-1] + h.Parts[i-1].Left
	}
	last := Lot{Number: b.Made + 1, Ends: Never, Source: "refund"}
	if len(b.Lots) > 0 {
		last = b.Lots[len(b.Lots)-1]
	}
	for i, l := range slices.Backward(h.Parts) {
		l.Left -= min(l.Left, max(0, stay-before[i]))
		if l.Number > 0 && l.Ends <= at {
			lost += l.Left
			continue
		}
		paid := min(l.Left, max(0, b.Debt-live))
		live += l.Left
		rest := l.Left - paid
		if l.Number == 0 {
			l = last
		}
		if n := slices.IndexFunc(b.Lots, func(o Lot) bool { return o.Number == l.Number }); n >= 0 && rest > 0 {
			b.Lots[n].Left += rest
		} else if rest > 0 {
			l.Left, b.Made = rest, max(b.Made, l.Number)
			b.add(l)
		}
	}
	b.Debt, b.Spent, b.Expired = b.Debt-min(b.Debt, live), b.Spent-back, b.Expired+lost
	return back
}

// Counts reports whether the units were spent before a time.
func (b *Account) Counts(_ *Rules, at int64, g Grant, _ *Rules, _ float64) bool { return at >= g.At }

// IdleAt returns the time from which nothing is known of the key. What was granted and spent
// is kept.
func (b *Account) IdleAt(*Rules) int64 {
	if b.Granted == 0 && b.Spent == 0 {
		return 0
	}
	return math.MaxInt64
}

func (b *Account) Clone() State {
	c := *b
	c.Lots = slices.Clone(b.Lots)
	return &c
}

func (b *Account) Seen(_ *Rules, _, at int64, _, _ float64) View {
	v := AccountView{Units: b.Used(nil, at, at), Parts: b.Parts}
	if len(b.Parts) > 0 {
		v.From = Spent{b.Parts[0].Number, b.Parts[0].Ends, b.Parts[0].Priority}
	}
	return v
}

// AccountView is the debt less the units left, and what the last decision spent from. Only a State
// knows its Parts.
type AccountView struct {
	Units float64
	From  Spent
	Parts []Lot
}

func (v AccountView) Level(*Rules, int64) float64 { return v.Units }

// FitsAt returns Never for what does not fit: no time is known at which units are granted.
func (v AccountView) FitsAt(_ *Rules, at int64, room, need float64) int64 {
	if Fit(room, v.Units, need) >= 1 {
		return at
	}
	return Never
}

func (v AccountView) EmptyAt(_ *Rules, at int64) int64 { return at }

func (v AccountView) Less(units float64) View {
	v.Units -= units
	return v
}

func (v AccountView) Counted(at int64) Grant {
	return Grant{At: at, EndsAt: v.From.Ends, Lot: int32(v.From.Lot), Priority: int16(v.From.Priority)}
}

func (v AccountView) Part(*Rules, float64) State { return &Account{} }
