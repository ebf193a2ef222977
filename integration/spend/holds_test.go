package spend

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func briefly() time.Duration { return time.Second + rand.N(time.Second).Truncate(time.Microsecond) }

// actual returns how much of n reserved units is spent, and a name for the case.
func actual(n float64) (float64, string) {
	switch k := rand.IntN(10); {
	case k < 5:
		return float64(rand.IntN(int(n))), "settled below"
	case k < 8:
		return n, "settled at"
	}
	return n + units(), "settled above"
}

// hold reserves outside a transaction, and settles, cancels or forgets.
func (w *spendWorker) reservation() {
	p, account, n := w.policy(), w.account(), units()
	request := p.Request(account, n)
	var h limiter.Reservation
	reserve := func(ctx context.Context) (err error) {
		h, err = w.limiter.Reserve(ctx, request, briefly())
		return err
	}
	if chance(50) {
		request.IdempotencyKey = w.newID("hold")
		w.insist("reserve", reserve)
	} else {
		ctx, cancel := patiently()
		defer cancel()
		if err := reserve(ctx); err != nil { // then it expires later
			w.lost(ctx, "reserve", err)
			w.count("unknown outcomes")
			return
		}
	}
	if !w.granted(h.Result) {
		w.giveBack(p, account)
		return
	}
	w.count("holds")
	rest(rand.N(2 * spendRest))
	switch k := rand.IntN(10); {
	case k < 5:
		w.settle(h.ID, n)
	case k < 8:
		w.cancel(h.ID)
	default:
		w.count("abandoned")
	}
}

func (w *spendWorker) settle(id string, reserved float64) {
	n, how := actual(reserved)
	w.insist("settle", func(ctx context.Context) error {
		r, err := w.limiter.Settle(ctx, id, n)
		if err == nil && r.Granted != n {
			w.fault("settled with %v: %+v", n, r)
		}
		if r.Expired {
			how = "settled late"
		}
		return err
	})
	w.count(how)
	if chance(70) {
		return
	}
	ctx, cancel := patiently()
	defer cancel()
	if r, err := w.limiter.Settle(ctx, id, n); err == nil && !r.Replayed {
		w.fault("settled twice: %+v", r)
	}
	if _, err := w.limiter.Settle(ctx, id, n+1); err == nil {
		w.fault("settled with %v and then with %v", n, n+1)
	}
	if err := w.limiter.Cancel(ctx, id); err == nil {
		w.fault("cancelled after it was settled")
	}
}

func (w *spendWorker) cancel(id string) {
	times := 1
	if chance(30) {
		times = 2
	}
	for range times {
		w.insist("cancel", func(ctx context.Context) error { return w.limiter.Cancel(ctx, id) })
	}
	w.count("cancelled")
}

// job reserves and inserts an order in one transaction, and ends the reservation in the
// same or in another. Any worker may end what is left open.
func (w *spendWorker) job() {
	p, account, n, id := w.policy(), w.account(), units(), w.newID("job")
	request := p.Request(account, n)
	request.IdempotencyKey = id
	state, denied := "open", false
	end := w.transact(anyFate(), func(ctx context.Context, tx *spendTx) (bool, error) {
		h, err := tx.Reserve(ctx, request, briefly())
		if err != nil {
			return false, err
		}
		if denied = !w.granted(h.Result); denied {
			return false, nil
		}
		spent := n
		if chance(15) {
			state = "settled"
			spent, _ = actual(n)
			if _, err = tx.Settle(ctx, h.ID, spent); err != nil {
				return false, err
			}
		}
		return true, tx.exec(ctx, "INSERT INTO orders (id, client, policy, account, units, state, hold) VALUES ($1, $2, $3, $4, $5, $6, $7)",
			id, w.name, p.Name, account, spent, state, h.ID)
	})
	switch {
	case denied:
		w.giveBack(p, account)
	case end == spendCommitted:
		w.ordered(id)
		w.count("holds in transactions")
		if state == "open" && chance(65) {
			rest(rand.N(2 * spendRest))
			w.endJob("id = $1", id)
		}
	}
}

// adopt ends what another worker has left open, mostly after it has expired.
func (w *spendWorker) adopt() { w.endJob("state = $1", "open") }

func (w *spendWorker) endJob(which string, arg string) {
	how := ""
	end := w.transact(anyFate(), func(ctx context.Context, tx *spendTx) (bool, error) {
		var id, hold string
		var n float64
		err := tx.read(ctx, []any{&id, &hold, &n},
			"SELECT id, hold, units FROM orders WHERE "+which+" AND state = 'open' LIMIT 1 FOR UPDATE SKIP LOCKED", arg)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if chance(25) {
			how = "cancelled in transactions"
			if err := tx.exec(ctx, "UPDATE orders SET state = 'cancelled' WHERE id = $1", id); err != nil {
				return false, err
			}
			return true, tx.Cancel(ctx, hold)
		}
		spent, _ := actual(n)
		how = "settled in transactions"
		if err := tx.exec(ctx, "UPDATE orders SET state = 'settled', units = $2 WHERE id = $1", id, spent); err != nil {
			return false, err
		}
		r, err := tx.Settle(ctx, hold, spent)
		if r.Expired {
			how = "settled late"
		}
		return true, err
	})
	if end == spendCommitted && how != "" {
		w.count(how)
	}
}
