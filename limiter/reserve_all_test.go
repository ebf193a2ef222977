package limiter_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestReserveAll: all keys are reserved or none, all are settled with one amount or with one each,
// or cancelled, and a repetition of each changes nothing.
func TestReserveAll(t *testing.T) {
	t.Parallel()
	ctx, l := t.Context(), limiter.NewMemory(nil)
	a, b := window("a", 10), window("b", 5)
	shadow := window("shadow", 3)
	shadow.Shadow = true
	ask := func(cost float64) []limiter.Request {
		return []limiter.Request{a.Request("k", cost), b.Request("k", cost), shadow.Request("k", cost)}
	}
	expect := func(what string, levels ...float64) {
		t.Helper()
		for i, p := range []limiter.Policy{a, b, shadow} {
			if r := must.OK(l.Check(ctx, p, "k", 0))(t); r.Level != levels[i] {
				t.Errorf("%s: %s has %v in use, want %v", what, p.Name, r.Level, levels[i])
			}
		}
	}
	one := must.OK(l.ReserveAll(ctx, time.Hour, ask(4)...))(t)
	if !one.Results.Allowed || len(one.IDs) != 3 || !strings.HasPrefix(one.IDs[2], "uncounted:") || time.Until(one.ExpiresAt) > time.Hour || time.Until(one.ExpiresAt) < 59*time.Minute {
		t.Errorf("%+v", one)
	}
	expect("reserved", 4, 4, 0)
	if none := must.OK(l.ReserveAll(ctx, time.Hour, ask(2)...))(t); none.Results.Allowed || none.Results.DeniedBy != 1 || none.IDs != nil || !none.ExpiresAt.IsZero() {
		t.Errorf("%+v", none)
	}
	expect("denied", 4, 4, 0)
	for _, replayed := range []bool{false, true} {
		for i, r := range must.OK(l.SettleAll(ctx, one.IDs, 1))(t) {
			if counted := i < 2; counted && (r.Granted != 1 || r.Replayed != replayed) || !counted && r.Source != limiter.SourceSkipped {
				t.Errorf("reservations[%d]: %+v", i, r)
			}
		}
		expect("settled", 1, 1, 0)
	}
	two := must.OK(l.ReserveAll(ctx, time.Hour, under("x", ask(3)...)...))(t)
	expect("reserved again", 4, 4, 3)
	if again := must.OK(l.ReserveAll(ctx, time.Hour, under("x", ask(3)...)...))(t); !again.Results.PerRequest[0].Replayed || fmt.Sprint(again.IDs) != fmt.Sprint(two.IDs) {
		t.Errorf("%+v, want the IDs of %+v", again, two)
	}
	must.OK(l.SettleAll(ctx, two.IDs, 3, 2, 0))(t)
	expect("settled with one each", 4, 3, 0)
	three := must.OK(l.ReserveAll(ctx, time.Hour, ask(1)...))(t)
	must.Succeed(t, l.CancelAll(ctx, three.IDs...))
	must.Succeed(t, l.CancelAll(ctx, three.IDs...))
	expect("cancelled", 4, 3, 0)
}

// TestSettleAllRefuses: one reservation that cannot be ended so is named, and none of the others
// ends.
func TestSettleAllRefuses(t *testing.T) {
	t.Parallel()
	ctx, l := t.Context(), limiter.NewMemory(nil)
	a, b := window("a", 10), window("b", 10)
	made := must.OK(l.ReserveAll(ctx, time.Hour, a.Request("k", 3), b.Request("k", 3)))(t)
	other := must.OK(l.Reserve(ctx, b.Request("k", 1), time.Hour))(t)
	must.OK(l.Settle(ctx, other.ID, 1))(t)
	unknown := strings.Replace(other.ID, ":b:", ":c:", 1)
	for text, c := range map[string]struct {
		ids   []string
		units []float64
		want  error
	}{
		"units 3: must be one number for all, or 2: one for each reservation": {made.IDs, []float64{1, 1, 1}, limiter.ErrInvalid},
		"ids 0: must be from 1 to 1000 IDs of reservations":                   {nil, []float64{1}, limiter.ErrInvalid},
		"units[1] -1: must be from 0 to 2^53":                                 {made.IDs, []float64{1, -1}, limiter.ErrInvalid},
		`ids[1] "x": is not the ID of a Reservation`:                          {[]string{made.IDs[0], "x"}, []float64{1}, limiter.ErrInvalid},
		"is there twice":      {append(made.IDs[:2:2], made.IDs[0]), []float64{1}, limiter.ErrInvalid},
		"no such reservation": {append(made.IDs[:2:2], unknown), []float64{1}, limiter.ErrNoReservation},
		strconv.Quote(other.ID[:40]) + "… (44 bytes) was settled, with 1 of its 1 units": {append(made.IDs[:2:2], other.ID), []float64{2}, limiter.ErrReservationEnded},
	} {
		if r, err := l.SettleAll(ctx, c.ids, c.units...); !errors.Is(err, c.want) || !strings.Contains(err.Error(), text) || r != nil {
			t.Errorf("%+v, %v, want %q", r, err, text)
		}
	}
	if err := l.CancelAll(ctx, append(made.IDs[:2:2], other.ID)...); !errors.Is(err, limiter.ErrReservationEnded) {
		t.Error(err)
	}
	if all, err := l.ReserveAll(ctx, time.Millisecond, a.Request("k", 1)); !errors.Is(err, limiter.ErrInvalid) || all.Results.DeniedBy != -1 {
		t.Errorf("%+v, %v", all, err)
	}
	if all, err := l.ReserveAll(ctx, time.Hour, a.Request("k", 1), a.Request("k", 1)); !errors.Is(err, limiter.ErrInvalid) || all.IDs != nil {
		t.Errorf("%+v, %v", all, err)
	}
	for _, p := range []limiter.Policy{a, b} {
		if u := must.OK(l.Usage(ctx, p, "k"))(t); u.Reserved != 3 {
			t.Errorf("%s: %+v", p.Name, u)
		}
	}
}
