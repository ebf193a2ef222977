package limiter

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/internal/store/memory"
)

// TestMemoryDBRollsBackExactly: a limiter with transactions and savepoints, some of them
// rolled back, is compared with one on which the calls that were rolled back were never
// made.
func TestMemoryDBRollsBackExactly(t *testing.T) {
	for _, a := range Algorithms() {
		t.Run(string(a), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) { newTxHistory(rt, a, 1000).run() })
		})
	}
}

// TestMemoryDBKeepsItsBound: transactions take and return the places of keys, also if
// there are few.
func TestMemoryDBKeepsItsBound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		newTxHistory(rt, rapid.SampledFrom(Algorithms()).Draw(rt, "algorithm"), rapid.IntRange(1, 3).Draw(rt, "MaxKeys")).run()
	})
}

// txHistory is a random history on two limiters.
type txHistory struct {
	*rapid.T
	policies []Policy
	us       atomic.Int64
	limiters [2]*Limiter // the second has no transactions
	stores   [2]*memory.Store
	ids      [2]map[int]string // of the reservations, by the number of their call
	results  [2]map[int]Result
	calls    int
	most     int  // keys
	few      bool // most is too few for all keys: a Reset in a transaction frees no place before the end
}

func newTxHistory(rt *rapid.T, a Algorithm, most int) *txHistory {
	h := &txHistory{T: rt, most: most, few: most < 10}
	p := Policy{Name: "p", Algorithm: a, Limit: 10, Period: 10 * time.Second}
	slower, blocks := p, p
	slower.Limit = 5
	blocks.Name, blocks.BlockFor = "blocks", 3*time.Second
	h.policies = []Policy{p, slower, blocks}
	h.us.Store(1_700_000_000_000_000)
	config := &Config{Now: func() time.Time { return time.UnixMicro(h.us.Load()) }, IdempotencyTTL: 8 * time.Second}
	for i := range 2 {
		h.stores[i] = memory.NewBounded(most)
		h.limiters[i] = newInMemory(h.stores[i], config)
		h.ids[i], h.results[i] = map[int]string{}, map[int]Result{}
	}
	return h
}

// txCall is one call of a method. It returns what can be compared.
type txCall struct {
	name   string
	number int
	do     func(i int, d Decider) (any, error)
}

func (h *txHistory) draw() txCall {
	ctx := context.Background()
	p := rapid.SampledFrom(h.policies).Draw(h.T, "policy")
	key := rapid.SampledFrom([]string{"a", "b"}).Draw(h.T, "key")
	n := float64(rapid.IntRange(1, 11).Draw(h.T, "units"))
	request := p.Request(key, n)
	earlier := rapid.IntRange(0, max(0, h.calls-1)).Draw(h.T, "earlier call")
	h.calls++
	c := txCall{number: h.calls, name: rapid.SampledFrom([]string{"do", "once", "upto", "all", "check", "usage", "charge", "refund", "undo", "reserve", "settle", "cancel", "block", "unblock", "reset"}).Draw(h.T, "method")}
	number := h.calls
	result := func(i int, r Result, err error) (any, error) { h.results[i][number] = r; return r, err }
	id := func(i int) string {
		if id := h.ids[i][earlier]; id != "" {
			return id
		}
		return "gcra:AAAAAAAAAAAAAAAAAAAAAAAAAA:p:aw"
	}
	switch c.name {
	case "do":
		c.do = func(i int, d Decider) (any, error) { r, err := d.Do(ctx, request); return result(i, r, err) }
	case "once":
		request.IdempotencyKey = rapid.SampledFrom([]string{"x", "y"}).Draw(h.T, "idempotency key")
		c.do = func(i int, d Decider) (any, error) { r, err := d.Do(ctx, request); return result(i, r, err) }
	case "upto":
		c.do = func(i int, d Decider) (any, error) { r, err := d.AllowUpTo(ctx, p, key, n); return result(i, r, err) }
	case "all":
		c.do = func(_ int, d Decider) (any, error) { return d.AllowAll(ctx, p.Request("a", n), p.Request("b", 1)) }
	case "check":
		c.do = func(_ int, d Decider) (any, error) { return d.Check(ctx, p, key, n) }
	case "usage":
		c.do = func(_ int, d Decider) (any, error) { return d.Usage(ctx, p, key) }
	case "charge":
		c.do = func(_ int, d Decider) (any, error) { return d.Charge(ctx, p, key, n) }
	case "refund":
		c.do = func(_ int, d Decider) (any, error) { return d.Refund(ctx, p, key, n) }
	case "undo":
		c.do = func(i int, d Decider) (any, error) { return d.Undo(ctx, p, key, h.results[i][earlier]) }
	case "reserve":
		if rapid.Bool().Draw(h.T, "once") {
			request.IdempotencyKey = "x"
		}
		ttl := time.Duration(rapid.IntRange(1, 5).Draw(h.T, "ttl")) * time.Second
		c.do = func(i int, d Decider) (any, error) {
			r, err := d.Reserve(ctx, request, ttl)
			h.ids[i][number] = r.ID
			r.ID = fmt.Sprint(r.ID != "")
			return r, err
		}
	case "settle":
		c.do = func(i int, d Decider) (any, error) { return d.Settle(ctx, id(i), n) }
	case "cancel":
		c.do = func(i int, d Decider) (any, error) { return nil, d.Cancel(ctx, id(i)) }
	case "block":
		c.do = func(_ int, d Decider) (any, error) { return nil, d.Block(ctx, p, key, 2*time.Second) }
	case "unblock":
		c.do = func(_ int, d Decider) (any, error) { return nil, d.Unblock(ctx, p, key) }
	case "reset":
		c.do = func(_ int, d Decider) (any, error) { return nil, d.Reset(ctx, p, key) }
	}
	return c
}

// answer returns what can be compared of a call's answer.
func (h *txHistory) answer(i int, c txCall, d Decider) string {
	v, err := c.do(i, d)
	text := fmt.Sprintf("call %d, %s: %+v", c.number, c.name, v)
	for _, e := range []error{ErrInvalid, ErrUnsupported, ErrNoReservation, ErrReservationEnded, ErrOverloaded, ErrRetryTx, ErrUnavailable} {
		if errors.Is(err, e) {
			text += ", " + e.Error()
		}
	}
	if err != nil {
		text += ", error"
	}
	return text
}

func (h *txHistory) same(a, b string) {
	if a != b && !h.few {
		h.Fatalf("with transactions\n%s\nwithout\n%s", a, b)
	}
}

// effective is a call that was not rolled back, with its answer.
type effective struct {
	txCall
	answer string
}

// inTx makes random calls in tx, some of them in savepoints, and returns those that were
// not rolled back in it.
func (h *txHistory) inTx(tx pgx.Tx, depth int) (kept []effective) {
	ctx := context.Background()
	for range rapid.IntRange(0, 5).Draw(h.T, "calls") {
		if depth < 2 && rapid.IntRange(0, 3).Draw(h.T, "savepoint") == 0 {
			point, err := tx.Begin(ctx)
			if err != nil {
				h.Fatal(err)
			}
			inside := h.inTx(point, depth+1)
			if rapid.Bool().Draw(h.T, "release") {
				kept = append(kept, inside...)
				err = point.Commit(ctx)
			} else {
				h.forget(inside)
				err = point.Rollback(ctx)
			}
			if err != nil {
				h.Fatal(err)
			}
			continue
		}
		c := h.draw()
		kept = append(kept, effective{c, h.answer(0, c, h.limiters[0].InTx(tx))})
	}
	return kept
}

// forget forgets the results of calls that are rolled back, which must not be undone.
func (h *txHistory) forget(calls []effective) {
	for _, c := range calls {
		delete(h.results[0], c.number)
	}
}

func (h *txHistory) run() {
	ctx := context.Background()
	for range rapid.IntRange(1, 12).Draw(h.T, "steps") {
		h.us.Add(int64(rapid.IntRange(0, 4_000_000).Draw(h.T, "time")))
		if rapid.Bool().Draw(h.T, "alone") {
			c := h.draw()
			h.same(h.answer(0, c, h.limiters[0]), h.answer(1, c, h.limiters[1]))
			continue
		}
		tx, err := (&MemoryDB{Limiter: h.limiters[0]}).Begin(ctx)
		if err != nil {
			h.Fatal(err)
		}
		kept := h.inTx(tx, 0)
		h.compare() // others see nothing of it
		if rapid.Bool().Draw(h.T, "commit") {
			err = tx.Commit(ctx)
			for _, c := range kept {
				if c.name == "check" { // outside a transaction it gives expired reservations back
					continue
				}
				h.same(c.answer, h.answer(1, c.txCall, h.limiters[1]))
			}
		} else {
			h.forget(kept)
			err = tx.Rollback(ctx)
		}
		if err != nil {
			h.Fatal(err)
		}
		h.compare()
		if m := h.stores[0]; m.Free()+int64(m.Len()) != int64(h.most) {
			h.Fatalf("%d keys and places for %d, want %d in all", m.Len(), m.Free(), h.most)
		}
		if !h.few && h.stores[0].Len() != h.stores[1].Len() {
			h.Fatalf("with transactions %d keys, without %d", h.stores[0].Len(), h.stores[1].Len())
		}
	}
}

// compare compares the states of all keys.
func (h *txHistory) compare() {
	for _, p := range h.policies {
		for _, key := range []string{"a", "b"} {
			var states [2]string
			for i, l := range h.limiters {
				u, err := l.Usage(context.Background(), p, key)
				if err != nil {
					h.Fatal(err)
				}
				states[i] = fmt.Sprintf("%s of %s: %+v", key, p.Name, u)
			}
			h.same(states[0], states[1])
		}
	}
}

// TestMemoryDBForgetsKeys: a reservation made in a transaction keeps its key no longer
// than others.
func TestMemoryDBForgetsKeys(t *testing.T) {
	m := memory.New()
	l := newInMemory(m, nil)
	ctx, p := t.Context(), Policy{Name: "p", Algorithm: FixedWindow, Limit: 10, Period: time.Hour}
	var made Reservation
	err := RunTx(ctx, l, &MemoryDB{Limiter: l}, nil, func(_ pgx.Tx, limits *Tx) (err error) {
		made, err = limits.Reserve(ctx, p.Request("k", 1), time.Hour)
		return err
	})
	if err == nil {
		err = errors.Join(l.Reset(ctx, p, "k"), l.Cancel(ctx, made.ID))
	}
	if err != nil || m.Len() != 0 {
		t.Errorf("%v, %d keys are kept", err, m.Len())
	}
}
