package limiter

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
)

var prepaid = Policy{Name: "prepaid", Algorithm: Balance}

// coin is one unit of a naive balance.
type coin struct {
	priority int
	ends     time.Time // zero: never
	lot      int
}

// purse is a naive balance: a list of single units, from which the best one is spent.
type purse struct {
	coins                         []coin
	lots                          int
	owed, granted, spent, expired int
}

func (p *purse) at(now time.Time) {
	before := len(p.coins)
	p.coins = slices.DeleteFunc(p.coins, func(c coin) bool { return !c.ends.IsZero() && !now.Before(c.ends) })
	p.expired += before - len(p.coins)
}

func (p *purse) grant(units, priority int, ends time.Time) {
	p.granted += units
	p.lots++
	for range units {
		if p.owed > 0 {
			p.owed--
		} else {
			p.coins = append(p.coins, coin{priority, ends, p.lots})
		}
	}
}

// inOrder compares coins by when they are spent.
func inOrder(a, b coin) int {
	ends := func(c coin) time.Time {
		if c.ends.IsZero() {
			return time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
		}
		return c.ends
	}
	return cmp.Or(cmp.Compare(a.priority, b.priority), ends(a).Compare(ends(b)), cmp.Compare(a.lot, b.lot))
}

// spend returns the coins that it takes, in their order: the zero coin for each unit that is owed.
func (p *purse) spend(units int) (taken []coin) {
	p.spent += units
	for range units {
		if len(p.coins) == 0 {
			p.owed++
			taken = append(taken, coin{})
			continue
		}
		best := slices.MinFunc(p.coins, inOrder)
		p.coins = slices.Delete(p.coins, slices.Index(p.coins, best), slices.Index(p.coins, best)+1)
		taken = append(taken, best)
	}
	return taken
}

// settle gives back what was taken but for the first units, the last coin first, or spends more.
func (p *purse) settle(taken []coin, units int, now time.Time) {
	p.spend(max(0, units-len(taken)))
	for _, c := range slices.Backward(taken[min(units, len(taken)):]) {
		p.spent--
		switch {
		case c.lot > 0 && !c.ends.IsZero() && !now.Before(c.ends):
			p.expired++
		case p.owed > 0:
			p.owed--
		case c.lot > 0:
			p.coins = append(p.coins, c)
		case len(p.coins) > 0:
			p.coins = append(p.coins, slices.MaxFunc(p.coins, inOrder))
		default:
			p.lots++
			p.coins = append(p.coins, coin{lot: p.lots})
		}
	}
}

// hold is a reservation of a naive balance. Without an id it has ended.
type hold struct {
	id    string
	until time.Time
	taken []coin // nil: it has expired, and was given back
}

// TestBalanceAsCoins: a balance is a heap of single units, of which the one of the lowest
// priority is spent first, then the one that expires first, then the oldest. A reservation gives its
// units back in reverse. What was granted and is owed is what is left, was spent, is reserved and
// has expired, at every moment.
func TestBalanceAsCoins(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 1))
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		l := NewMemory(&Config{Now: func() time.Time { return now }})
		p, coins, all := prepaid, &purse{}, []*hold(nil)
		p.Overdraft = float64(random.IntN(3) * 5)

		for step := range 60 {
			now = now.Add(time.Duration(random.IntN(4)) * time.Second)
			coins.at(now)
			units := 1 + random.IntN(12)
			switch random.IntN(7) {
			case 0:
				o := GrantOptions{Priority: random.IntN(3) - 1}
				if random.IntN(2) == 0 {
					o.Expires = now.Add(time.Duration(1+random.IntN(10)) * time.Second)
				}
				coins.grant(units, o.Priority, o.Expires)
				must.OK(l.Grant(t.Context(), p, "k", float64(units), o))(t)
			case 1:
				coins.spend(units)
				must.OK(l.Charge(t.Context(), p, "k", float64(units)))(t)
			case 2, 3:
				until := now.Add(time.Duration(1+random.IntN(8))*time.Second + time.Duration(step)*time.Microsecond)
				ok := coins.fits(units, p.Overdraft, all, now)
				h := must.OK(l.Reserve(t.Context(), p.Request("k", float64(units)), until.Sub(now)))(t)
				if h.Result.Allowed != ok {
					t.Fatalf("seed %d, step %d: %+v for %d of %+v", seed, step, h, units, coins)
				}
				if ok {
					all = append(all, &hold{h.ID, until, coins.spend(units)})
					slices.SortStableFunc(all, func(a, b *hold) int { return a.until.Compare(b.until) })
				}
			case 4, 5:
				if len(all) == 0 {
					continue
				}
				h := all[random.IntN(len(all))]
				if h.id == "" {
					continue
				}
				coins.end(t, l, h, units, now, random)
				h.id = ""
			default:
				ok := coins.fits(units, p.Overdraft, all, now)
				if ok {
					coins.spend(units)
				}
				if r := must.OK(l.AllowN(t.Context(), p, "k", float64(units)))(t); r.Allowed != ok {
					t.Fatalf("seed %d, step %d: %+v for %d of %+v", seed, step, r, units, coins)
				}
			}
			checkCoins(t, l, p, all, coins, seed, step)
		}
	}
}

// end settles a reservation, or cancels it, in the limiter and in the purse.
func (c *purse) end(t *testing.T, l *Limiter, h *hold, units int, now time.Time, random *rand.Rand) {
	t.Helper()
	if units %= 2 * (len(h.taken) + 1); units == 0 && random.IntN(2) == 0 {
		if h.taken != nil {
			c.settle(h.taken, 0, now)
		}
		must.Succeed(t, l.Cancel(t.Context(), h.id))
	} else {
		c.settle(h.taken, units, now)
		must.OK(l.Settle(t.Context(), h.id, float64(units)))(t)
	}
}

// fits reports whether units may be spent with an overdraft. A denial gives back what has
// expired of the reservations, the first to expire first.
func (c *purse) fits(units int, overdraft float64, all []*hold, now time.Time) bool {
	fit := func(units int) bool { return units <= len(c.coins)+int(overdraft)-c.owed }
	if fit(units) {
		return true
	}
	for _, h := range all {
		if h.id != "" && h.taken != nil && !now.Before(h.until) {
			c.settle(h.taken, 0, now)
			h.taken = nil
		}
	}
	return fit(units)
}

// checkCoins compares the usage of a key with the coins.
func checkCoins(t *testing.T, l *Limiter, p Policy, all []*hold, coins *purse, seed uint64, step int) {
	t.Helper()
	u := must.OK(l.Usage(t.Context(), p, "k"))(t)
	left, reserved, want := 0.0, 0, map[int]int{}
	for _, lot := range u.Lots {
		left += lot.Units
	}
	for _, h := range all {
		if h.id != "" {
			reserved += len(h.taken)
		}
	}
	for _, c := range coins.coins {
		want[c.lot]++
	}
	if u.Granted != float64(coins.granted) || u.Spent != float64(coins.spent-reserved) || u.Reserved != float64(reserved) || u.Expired != float64(coins.expired) || u.Debt != float64(coins.owed) ||
		u.Granted+u.Debt != left+u.Spent+u.Reserved+u.Expired || len(u.Lots) != len(want) {
		t.Fatalf("seed %d, step %d: got %+v, want %+v", seed, step, u, coins)
	}
	for _, lot := range u.Lots {
		if lot.Units != float64(want[int(lot.Number)]) {
			t.Fatalf("seed %d, step %d: lot %+v, want %d units", seed, step, lot, want[int(lot.Number)])
		}
	}
}

// TestBalanceErrors: bad input names the field and the value, and verbs without meaning are
// unsupported. None changes anything.
func TestBalanceErrors(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l := NewMemory(&Config{Now: func() time.Time { return now }})
	grant := func(units float64, o GrantOptions) error {
		_, err := l.Grant(t.Context(), prepaid, "k", units, o)
		return err
	}
	bucket := PerSecond("bucket", 5)
	for want, err := range map[string]error{
		"Expires 2026-01-01T00:00:00Z": grant(1, GrantOptions{Expires: now}),
		"Expires 10000-01-01":          grant(1, GrantOptions{Expires: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}),
		"Priority 1001":                grant(1, GrantOptions{Priority: 1001}),
		"Priority -1001":               grant(1, GrantOptions{Priority: -1001}),
		"is longer than 255":           grant(1, GrantOptions{Source: strings.Repeat("x", 256)}),
		"NUL":                          grant(1, GrantOptions{Source: "\x00"}),
		"UTF-8":                        grant(1, GrantOptions{Source: "\xff"}),
		"units 0":                      grant(0, GrantOptions{}),
		"units -1":                     grant(-1, GrantOptions{}),
		"units 0.0000000001":           grant(1e-10, GrantOptions{}),
		"units 1e+300: must":           grant(1e300, GrantOptions{}),
		"IdempotencyKey":               grant(1, GrantOptions{IdempotencyKey: strings.Repeat("x", 256)}),
		"Floor 0.5": func() error {
			_, err := l.Do(t.Context(), Request{Policy: prepaid, Key: "k", Cost: 1, Floor: 0.5})
			return err
		}(),
	} {
		if err == nil || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an ErrInvalid with %q", err, want)
		}
	}
	for name, call := range map[string]func() error{
		"Grant": func() error { _, err := l.Grant(t.Context(), bucket, "k", 1, GrantOptions{}); return err },
		"Wait":  func() error { return l.Wait(t.Context(), prepaid, "k", 1) },
	} {
		if err := call(); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []struct {
		field  string
		policy func(*Policy)
	}{
		{"Limit", func(p *Policy) { p.Limit = 1 }},
		{"Period", func(p *Policy) { p.Period = 1 }},
		{"Burst", func(p *Policy) { p.Burst = 1 }},
		{"Tick", func(p *Policy) { p.Tick = 1 }},
		{"Aligned", func(p *Policy) { p.Aligned = true }},
		{"Calendar", func(p *Policy) { p.Calendar = Day }},
		{"BlockGrowth", func(p *Policy) { p.BlockGrowth = 2 }},
		{"BlockMax", func(p *Policy) { p.BlockMax = 2 }},
		{"Lease", func(p *Policy) { p.Lease = 0.1 }},
		{"MaxKeys", func(p *Policy) { p.MaxKeys = 1 }},
		{"RestLimit", func(p *Policy) { p.RestLimit = 1 }},
		{"OnError", func(p *Policy) { p.OnError = FailLocal }},
		{"Overdraft", func(p *Policy) { p.Overdraft = -1 }},
		{"Overdraft", func(p *Policy) { p.Algorithm, p.Overdraft, p.Limit, p.Period = TokenBucket, 1, 1, 1 }},
	} {
		p := prepaid
		c.policy(&p)
		var e *PolicyError
		if err := p.Validate(); !errors.As(err, &e) || e.Field != c.field {
			t.Errorf("%s: %v", c.field, err)
		}
	}
	if u := must.OK(l.Usage(t.Context(), prepaid, "k"))(t); u.Granted != 0 || u.Spent != 0 || u.Lots != nil {
		t.Errorf("it changed %+v", u)
	}
}

// TestBalanceHasSoManyLots: a key has at most 100 lots with units. Lots that were spent or have
// expired make room, and so does a grant that pays a debt need none.
func TestBalanceHasSoManyLots(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l := NewMemory(&Config{Now: func() time.Time { return now }})
	grant := func(o GrantOptions) error {
		_, err := l.Grant(t.Context(), prepaid, "k", 1, o)
		return err
	}
	for i := range 100 {
		o := GrantOptions{}
		if i == 50 {
			o.Expires = now.Add(time.Second)
		}
		must.Succeed(t, grant(o))
	}
	if err := grant(GrantOptions{}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "100") {
		t.Error(err)
	}
	now = now.Add(time.Second)
	if err := grant(GrantOptions{}); err != nil {
		t.Error(err)
	}
	must.OK(l.Allow(t.Context(), prepaid, "k"))(t)
	if err := grant(GrantOptions{}); err != nil {
		t.Error(err)
	}
	if u := must.OK(l.Usage(t.Context(), prepaid, "k"))(t); len(u.Lots) != 100 || u.Granted != 102 || u.Spent != 1 || u.Expired != 1 {
		t.Errorf("%d lots: %+v", len(u.Lots), u)
	}
}

// TestBalanceUndo: an Undo pays the debt, and gives the rest to the lot that was spent from first,
// used up or not, which keeps its end. Once that has passed, nothing goes back.
func TestBalanceUndo(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l := NewMemory(&Config{Now: func() time.Time { return now }})
	p := prepaid
	p.Overdraft = 5
	ends := now.Add(time.Hour)
	must.OK(l.Grant(t.Context(), p, "k", 10, GrantOptions{Expires: ends, Priority: 3}))(t)
	must.OK(l.Grant(t.Context(), p, "k", 10, GrantOptions{Priority: 5}))(t)
	spend := func(units float64) Result { return must.OK(l.AllowN(t.Context(), p, "k", units))(t) }
	check := func(r Result, back float64, want ...Lot) {
		t.Helper()
		undone := must.OK(l.Undo(t.Context(), p, "k", r))(t)
		u := must.OK(l.Usage(t.Context(), p, "k"))(t)
		for i := range u.Lots {
			u.Lots[i].Source = ""
			if !u.Lots[i].Expires.IsZero() {
				u.Lots[i].Expires = u.Lots[i].Expires.UTC()
			}
		}
		if undone.Granted != back || !slices.Equal(u.Lots, want) {
			t.Errorf("%v back, %+v; want %v and %+v", undone.Granted, u.Lots, back, want)
		}
	}
	first, second := Lot{Number: 1, Units: 10, Expires: ends, Priority: 3}, Lot{Number: 2, Units: 10, Priority: 5}
	check(spend(4), 4, first, second)
	check(spend(10), 10, first, second)
	first.Units, second.Units = 15, 5
	check(spend(15), 15, first, second) // all to the lot that ends first
	all, debt := spend(20), spend(5)
	first.Units = 15
	check(all, 20, first) // the debt of 5 first
	first.Units = 20
	check(debt, 5, first)
	last := spend(1)
	now = ends
	check(last, 0)
}

// TestBalanceOnce: Do and Grant under one IdempotencyKey exclude each other, and each is carried
// out once.
func TestBalanceOnce(t *testing.T) {
	t.Parallel()
	l := NewMemory(nil)
	o := GrantOptions{IdempotencyKey: "a"}
	for i := range 2 {
		if r, err := l.Grant(t.Context(), prepaid, "k", 10, o); err != nil || r.Granted != 10 || r.Remaining != 10 || r.Replayed != (i > 0) {
			t.Errorf("%+v, %v", r, err)
		}
		in := prepaid.Request("k", 3)
		in.IdempotencyKey = "b"
		if r, err := l.Do(t.Context(), in); err != nil || r.Remaining != 7 || r.Replayed != (i > 0) {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if _, err := l.Grant(t.Context(), prepaid, "k", 3, GrantOptions{IdempotencyKey: "b"}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	in := prepaid.Request("k", 10)
	in.IdempotencyKey = "a"
	if _, err := l.Do(t.Context(), in); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, err := l.Grant(t.Context(), prepaid, "k", 11, o); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

// TestBalanceUsageJSON: a Usage has what a balance has, and that of another algorithm has not.
func TestBalanceUsageJSON(t *testing.T) {
	t.Parallel()
	l := NewMemory(nil)
	must.OK(l.Grant(t.Context(), prepaid, "k", 2, GrantOptions{Source: "gift"}))(t)
	got := string(must.OK(json.Marshal(must.OK(l.Usage(t.Context(), prepaid, "k"))(t)))(t))
	if want := `"granted":2,"expired":0,"debt":0,"lots":[{"number":1,"units":2,"source":"gift"}]}`; !strings.HasSuffix(got, want) {
		t.Errorf("got %s, want it to end with %s", got, want)
	}
	got = string(must.OK(json.Marshal(must.OK(l.Usage(t.Context(), PerSecond("b", 1), "k"))(t)))(t))
	if strings.Contains(got, "lots") {
		t.Error(got)
	}
	if err := fmt.Sprint(must.OK(l.AllowN(t.Context(), prepaid, "k", 3))(t).Err()); !strings.Contains(err, "too few units") {
		t.Error(err)
	}
}
