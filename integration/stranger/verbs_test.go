package stranger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestStrangersInVectors decides the test vectors with all planted objects in the
// search_path. Using a planted operator fails its statement.
func TestStrangersInVectors(t *testing.T) {
	t.Parallel()
	address, _ := bed.PlantedDatabase(t)
	pool := bed.Connect(t, address)
	conformance.Run(t, "../testdata/checkout/testdata/vectors", func(t *testing.T, clock *conformance.Clock) *limiter.Limiter {
		return bed.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, DisableDenyCache: true})
	})
}

// TestStrangersInVerbs calls what the vectors leave out: reservations, transactions,
// AllowAll, waits, calendars, blocks, database/sql, views, the SQL functions and the
// janitor.
func TestStrangersInVerbs(t *testing.T) {
	t.Parallel()
	address, _ := bed.PlantedDatabase(t)
	pool := bed.Connect(t, address)
	clock := new(conformance.Clock)
	l := bed.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, DisableDenyCache: true})
	tries := 0
	try := func(what string, err error) {
		t.Helper()
		tries++
		if errors.As(err, new(*limiter.DeniedError)) {
			err = nil // a decision
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	policies := bed.Variants(10, 10*time.Second)
	for i := range policies {
		policies[i].BlockFor = time.Second
	}
	month := limiter.Policy{Name: "month", Algorithm: limiter.FixedWindow, Limit: 10, Calendar: limiter.Month, TimeZone: "Europe/Vienna"}

	for round := range 3 { // on no row, on one, and on one that has leaked
		clock.Set(int64(round+1) * 7_000_000)
		for _, p := range append(policies, month) {
			tryVerbs(t, l, p, try)
			tryFunctions(t, pool, p, clock, try)
		}
		tryTogether(t, l, policies, try)
		for _, conn := range bed.SQLDrivers {
			database := bed.NewSQL(t, bed.ConnectSQL(t, conn, address), &limiter.Config{Now: clock.Now, DisableDenyCache: true})
			for _, p := range policies {
				_, err := database.AllowUpTo(t.Context(), p, conn, 3)
				try(conn+" "+bed.Variant(p), err)
			}
		}
		for _, view := range limitViews() {
			_, err := pool.Exec(t.Context(), `SELECT * FROM `+view)
			try(view, err)
		}
		// The janitor gives back what is still reserved, then deletes all that has
		// expired.
		clock.Set(int64(round+1)*7_000_000 + 2_000_000)
		j, err := janitor.New(pool, &janitor.Config{Now: func() time.Time { return clock.Now().Add(time.Duration(round) * 1000 * time.Hour) }})
		if err != nil {
			t.Fatal(err)
		}
		_, err = j.Sweep(t.Context())
		try("sweep", err)
	}
	if tries < 500 {
		t.Errorf("only %d calls", tries)
	}
}

// limitViews are the views. It does not use LimitTables, whose query a planted object
// would fail.
func limitViews() (all []string) {
	for _, a := range limiter.Algorithms() {
		all = append(all, "pglimit_"+string(a)+"_now")
	}
	return append(all, "pglimit_keys")
}

// tryVerbs calls every verb under a policy.
func tryVerbs(t *testing.T, l *limiter.Limiter, p limiter.Policy, try func(string, error)) {
	t.Helper()
	ctx := t.Context()
	queue := p.Algorithm == limiter.LeakyBucketQueue
	for _, op := range slices.Compact(append(bed.Operations(p.Algorithm), "allow", "unblock")) {
		_, err := conformance.Do(ctx, l, p, op, "k", 2)
		try(bed.Variant(p)+" "+op, err)
	}
	for _, units := range []float64{1.5, 20, 0.5} { // granted, denied and blocked
		_, err := l.AllowN(ctx, p, "denied", units)
		try(bed.Variant(p)+" allow", err)
	}
	_, err := l.Usage(ctx, p, "k")
	try(bed.Variant(p)+" statement", err)
	for range 2 {
		_, err = l.Do(ctx, limiter.Request{Policy: p, Key: "once", Cost: 1, IdempotencyKey: "order 7"})
		try(bed.Variant(p)+" under an idempotency key", err)
	}
	if queue {
		try("wait", l.Wait(ctx, p, "wait", 0.001))
		_, err = l.WaitAll(ctx, p.Request("wait", 0.001), p.Request("wait too", 0.001))
		try("wait for all", err)
		ended, end := context.WithCancel(ctx)
		end()
		if err := l.Wait(ended, p, "wait", 1); !errors.Is(err, context.Canceled) {
			try("wait after its end", err)
		}
		return
	}
	for _, end := range []string{"settle", "spend more", "cancel", "expire"} {
		hold, err := l.Reserve(ctx, p.Request("held "+end, 2), time.Second)
		try(bed.Variant(p)+" reserve", err)
		switch {
		case err != nil || hold.ID == "":
		case end == "settle":
			_, err = l.Settle(ctx, hold.ID, 1.5)
		case end == "spend more":
			_, err = l.Settle(ctx, hold.ID, 30)
		case end == "cancel":
			err = l.Cancel(ctx, hold.ID)
		}
		try(bed.Variant(p)+" "+end, err)
	}
}

// tryTogether requests all policies at once, in and out of a transaction, and from several
// goroutines, whose requests share statements.
func tryTogether(t *testing.T, l *limiter.Limiter, policies []limiter.Policy, try func(string, error)) {
	t.Helper()
	var requests []limiter.Request
	for _, p := range policies {
		requests = append(requests, p.Request("together", 0.5), p.Request("together too", 1))
	}
	_, err := l.AllowAll(t.Context(), requests...)
	try("all", err)
	_, err = l.AllowAll(t.Context(), append(requests, policies[0].Request("too much", 10.5))...)
	try("all, denied", err)
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range 64 {
		p := policies[i%len(policies)]
		all.Go(func() {
			_, err := l.AllowN(t.Context(), p, fmt.Sprintf("crowd %d", i%16), 1)
			mu.Lock()
			defer mu.Unlock()
			try("a crowd's "+bed.Variant(p), err)
		})
	}
	all.Wait()
}

// tryFunctions calls every SQL function under a policy.
func tryFunctions(t *testing.T, pool *pgxpool.Pool, p limiter.Policy, clock *conformance.Clock, try func(string, error)) {
	t.Helper()
	tryNamed(t, pool, p, clock, try)
	if p.Calendar != "" {
		_, err := pool.Exec(t.Context(), `SELECT * FROM pglimit.fixed_window('month', 'sql', limit_units => 10, ends_at => clock_timestamp() OPERATOR(pg_catalog.+) interval '1 day')`)
		try("fixed_window until", err)
		return
	}
	now := clock.Now()
	for _, op := range slices.Compact(append(bed.Operations(p.Algorithm), "allow", "unblock")) {
		_, err := bed.CallFunction(t.Context(), pool, p, op, "sql", 2, &now)
		try("function "+bed.Variant(p)+" "+op, err)
	}
	if p.Algorithm == limiter.LeakyBucketQueue {
		return
	}
	sql, args := bed.FunctionCall(p, "reserve", "sql held", 2, &now)
	sql = strings.Replace(strings.Replace(sql, "(", "(ttl_s => 1, ", 1), "*", "reservation", 1)
	for _, end := range []string{"SELECT pglimit.settle($1, 1.5, $2)", "SELECT pglimit.cancel($1, $2)", ""} {
		var hold *string
		err := pool.QueryRow(t.Context(), sql, args...).Scan(&hold)
		try("function reserve "+bed.Variant(p), err)
		if hold != nil && end != "" {
			_, err = pool.Exec(t.Context(), end, *hold, now)
			try(end+" "+bed.Variant(p), err)
		}
	}
}

// tryNamed calls the SQL functions by a policy's name, of either schema: without an
// override, with one, under a shadow, and without a limit.
func tryNamed(t *testing.T, pool *pgxpool.Pool, p limiter.Policy, clock *conformance.Clock, try func(string, error)) {
	t.Helper()
	p.Name = "named-" + p.Name
	if p.Algorithm == limiter.FixedWindow && p.Calendar == "" {
		p.Burst = p.Limit
	}
	bed.StorePolicy(t, pool, p, true)
	for key, set := range map[string]string{"plain": "", "more": "limit_units => 20", "shadow": "shadow => true", "free": "unlimited => true"} {
		if column, value, found := strings.Cut(set, " => "); found {
			bed.Exec(t, pool, fmt.Sprintf(`DELETE FROM pglimit_override WHERE policy = '%s' AND key = '%s'`, p.Name, key))
			bed.Exec(t, pool, fmt.Sprintf(`INSERT INTO pglimit_override (policy, key, %s, until) VALUES ('%s', '%s', %s, '9999-01-01')`, column, p.Name, key, value))
		}
		for schema, now := range map[string]time.Time{"pglimit": clock.Now(), "pglimit_ask": {}} {
			at := &now
			if schema == "pglimit_ask" {
				at = nil
			}
			for _, op := range append(bed.Operations(p.Algorithm), "reserve", "reserve") {
				if schema == "pglimit_ask" && slices.Contains([]string{"refund", "block", "unblock", "reset"}, op) || op == "reserve" && p.Algorithm == limiter.LeakyBucketQueue {
					continue
				}
				got, err := bed.CallNamed(t.Context(), pool, schema, p.Name, op, key, 4, at)
				try(fmt.Sprintf("%s.%s of %s, %s", schema, op, bed.Variant(p), key), err)
				if got.ID != "" {
					if at == nil {
						_, err = pool.Exec(t.Context(), `SELECT pglimit_ask.settle($1, 2)`, got.ID)
					} else {
						_, err = pool.Exec(t.Context(), `SELECT pglimit.settle($1, 2, $2)`, got.ID, now)
					}
					try(schema+".settle of "+got.ID, err)
				}
			}
		}
	}
	_, err := pool.Exec(t.Context(), `SELECT pglimit.allow('nobody', 'k')`)
	if err == nil || !strings.Contains(err.Error(), "there is no policy of that name") {
		t.Errorf("without a policy: %v", err)
	}
}

// TestStrangersInTransactions calls verbs in a caller's transaction.
func TestStrangersInTransactions(t *testing.T) {
	t.Parallel()
	address, _ := bed.PlantedDatabase(t)
	pool := bed.Connect(t, address)
	l := bed.NewLimiter(t, pool, nil)
	policies := bed.Variants(10, time.Hour)
	for _, p := range policies {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			in := l.InTx(tx)
			for _, units := range []float64{1, 9.5} {
				if _, err := in.AllowAll(t.Context(), p.Request("a", units), policies[0].Request("b", 1)); err != nil {
					return err
				}
			}
			_, err := in.Do(t.Context(), limiter.Request{Policy: p, Key: "once", Cost: 1, IdempotencyKey: "order 7"})
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", bed.Variant(p), err)
		}
	}
}
