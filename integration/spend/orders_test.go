package spend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

const (
	spendAccounts = 4 // of each policy
	spendTenants  = 2
	accountBudget = 5000
	tenantBudget  = 2000 // less than its accounts have, so that it denies too
	maxOrder      = 200
)

// spendPolicies are the budgets. No window ends and no whole unit leaks within the minute
// or two of a test, so everything counted stays counted.
type spendPolicies struct {
	month, bucket, tenant limiter.Policy
	closed                limiter.Policy // has nothing left
}

func newSpendPolicies(zone string) spendPolicies {
	const century = 100 * 365 * 24 * time.Hour
	return spendPolicies{
		month:  limiter.Policy{Name: "month", Algorithm: limiter.FixedWindow, Limit: accountBudget, Calendar: limiter.Month, TimeZone: zone},
		bucket: limiter.Policy{Name: "bucket", Algorithm: limiter.TokenBucket, Limit: 1, Period: century, Burst: accountBudget},
		tenant: limiter.Policy{Name: "tenant", Algorithm: limiter.FixedWindow, Limit: tenantBudget, Period: century},
		closed: limiter.Policy{Name: "closed", Algorithm: limiter.FixedWindow, Limit: 1, Period: century},
	}
}

// spendZone is a time zone whose month does not end within the next hours.
func spendZone(now time.Time) string {
	if now.UTC().Month() != now.UTC().Add(3*time.Hour).Month() {
		return "Pacific/Honolulu" // where that is ten hours later
	}
	return "UTC"
}

func (w *spendWorker) policy() limiter.Policy {
	if chance(50) {
		return w.month
	}
	return w.bucket
}

func (w *spendWorker) account() string { return fmt.Sprint("a", rand.IntN(spendAccounts)) }

// tenantOf returns the tenant whose budget an account's orders also count to, if any.
func tenantOf(account string) string { return fmt.Sprint("t", int(account[1]-'0')%spendTenants) }

func units() float64 { return float64(1 + rand.IntN(maxOrder)) }

// order inserts an order and spends its units of the account's budget, and of the tenant's
// if it has one, in one transaction. A denied order is rolled back, or kept with the state
// denied.
func (w *spendWorker) order() {
	p, account, n := w.policy(), w.account(), units()
	var tenant *string
	if chance(35) {
		name := tenantOf(account)
		tenant = &name
	}
	id, full := w.newID("order"), "" // whose budget is full
	end := w.transact(anyFate(), func(ctx context.Context, tx *spendTx) (bool, error) {
		err := tx.exec(ctx, "INSERT INTO orders (id, client, policy, account, tenant, units, state) VALUES ($1, $2, $3, $4, $5, $6, 'spent')",
			id, w.name, p.Name, account, tenant, n)
		if err != nil {
			return false, err
		}
		var r limiter.Result
		if tenant == nil {
			r, err = tx.AllowN(ctx, p, account, n)
			full = account
		} else {
			var all limiter.Results
			if all, err = tx.AllowAll(ctx, p.Request(account, n), w.tenant.Request(*tenant, n)); err != nil {
				return false, err
			}
			w.count("requested together")
			r = all.PerRequest[max(0, all.DeniedBy)]
			if full = account; all.DeniedBy == 1 {
				w.count("denied by the tenant")
				full = *tenant
			}
			if r.Allowed != all.Allowed {
				w.fault("AllowAll: %+v", all)
			}
		}
		if err != nil {
			return false, err
		}
		if w.granted(r) {
			full = ""
			return true, nil
		}
		if chance(50) {
			return false, nil
		}
		return true, tx.exec(ctx, "UPDATE orders SET state = 'denied' WHERE id = $1", id)
	})
	if end == spendCommitted {
		w.ordered(id)
	}
	if full != "" {
		w.giveBack(p, full)
	}
}

// orderOnce is an order whose number is the idempotency key. It is retried until its
// outcome is known.
func (w *spendWorker) orderOnce() {
	p, account, n, id := w.policy(), w.account(), units(), w.newID("once")
	request := p.Request(account, n)
	request.IdempotencyKey = id
	f, denied := anyFate(), false
	if chance(30) {
		f = toLose
	}
	for end := spendUnknown; end != spendCommitted && !denied; f = toCommit {
		end = w.transact(f, func(ctx context.Context, tx *spendTx) (bool, error) {
			var is bool
			err := tx.read(ctx, []any{&is}, `WITH o AS (INSERT INTO orders (id, client, policy, account, units, state)
				VALUES ($1, $2, $3, $4, $5, 'spent') ON CONFLICT (id) DO NOTHING RETURNING id) SELECT count(*) > 0 FROM o`,
				id, w.name, p.Name, account, n)
			if err != nil {
				return false, err
			}
			r, err := tx.Do(ctx, request)
			if err != nil {
				return false, err
			}
			if r.Replayed {
				w.count("replayed")
			}
			if denied = !w.granted(r); !denied && r.Replayed == is {
				w.fault("order %s: inserted is %v, replayed %v", id, is, r.Replayed)
			}
			return !denied, nil
		})
		if end == spendUnknown {
			w.count("orders sent again")
		}
	}
	if denied {
		w.giveBack(p, account)
	} else {
		w.ordered(id)
	}
}

// orderAfter spends first, outside a transaction, and then inserts the order. Its client
// may be killed in between: the spend is remembered under its key.
func (w *spendWorker) orderAfter() {
	p, account, n, id := w.policy(), w.account(), units(), w.newID("after")
	request := p.Request(account, n)
	request.IdempotencyKey = id
	allowed := false
	w.insist("spend", func(ctx context.Context) error {
		r, err := w.limiter.Do(ctx, request)
		allowed = err == nil && w.granted(r)
		if err == nil && r.Replayed {
			w.count("replayed")
		}
		return err
	})
	if !allowed {
		w.giveBack(p, account)
		return
	}
	w.insist("insert an order", func(ctx context.Context) error {
		_, err := w.pool.Exec(ctx, `INSERT INTO orders (id, client, policy, account, units, state) VALUES ($1, $2, $3, $4, $5, 'spent before')
			ON CONFLICT (id) DO NOTHING`, id, w.name, p.Name, account, n)
		return err
	})
	w.ordered(id)
}

// askInVain sends requests together with one of a budget that is used up: nothing is
// spent.
func (w *spendWorker) askInVain() {
	ctx, cancel := patiently()
	defer cancel()
	all, err := w.limiter.AllowAll(ctx, w.policy().Request(w.account(), units()), w.closed.Request("closed", 1))
	switch {
	case err != nil:
		w.lost(ctx, "request a full budget", err)
	case all.Allowed:
		w.fault("AllowAll with a budget that is used up: %+v", all)
	default:
		w.count("requested a full budget")
	}
}

// giveBack refunds an order, or what a reservation was settled with, in the transaction
// that removes it. So budgets stay near their limit all the time. full is an account or a
// tenant.
func (w *spendWorker) giveBack(p limiter.Policy, full string) {
	var what string
	done := w.transact(anyFate(), func(ctx context.Context, tx *spendTx) (bool, error) {
		var account string
		var tenant *string
		var n float64
		var err error
		switch what = "returned orders"; {
		case full[0] == 't':
			p = w.month
			if chance(50) {
				p = w.bucket
			}
			err = tx.read(ctx, []any{&account, &tenant, &n}, returnOrder("tenant"), p.Name, full)
		case chance(50):
			err = tx.read(ctx, []any{&account, &tenant, &n}, returnOrder("account"), p.Name, full)
		default:
			what = "returned settlements"
			err = tx.read(ctx, []any{&account, &n}, `UPDATE ended SET returned = true WHERE n = (SELECT n FROM ended
				WHERE policy = $1 AND key = $2 AND state = 'settled' AND NOT returned AND units > 0 LIMIT 1 FOR UPDATE SKIP LOCKED)
				RETURNING key, units`, p.Name, full)
		}
		if errors.Is(err, sql.ErrNoRows) {
			what = ""
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if err := w.refund(ctx, tx, p, account, n); err != nil || tenant == nil {
			return true, err
		}
		return true, w.refund(ctx, tx, w.tenant, *tenant, n)
	})
	if done == spendCommitted {
		w.count(what)
	}
}

func returnOrder(column string) string {
	return `UPDATE orders SET returned = true WHERE id = (SELECT id FROM orders
		WHERE policy = $1 AND ` + column + ` = $2 AND state IN ('spent', 'spent before') AND NOT returned ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED)
		RETURNING account, tenant, units`
}

func (w *spendWorker) refund(ctx context.Context, tx *spendTx, p limiter.Policy, key string, n float64) error {
	r, err := tx.Refund(ctx, p, key, n)
	if err == nil && r.Granted < n-leaks(p) {
		w.fault("refund of %v to %s of %s: %+v", n, key, p.Name, r)
	}
	return err
}

// leaks is more than leaks in the time of a test.
func leaks(p limiter.Policy) float64 {
	if p.Algorithm == limiter.TokenBucket {
		return 0.001
	}
	return 0
}
