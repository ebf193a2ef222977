package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// A program declares its policies as defaults. Operators then change them in the database,
// without a new release.
func ExampleOpenPolicies() {
	open := func(ctx context.Context, pool *pgxpool.Pool) (*limiter.Limiter, *limiter.Policies, error) {
		policies, err := limiter.OpenPolicies(ctx, pool, nil)
		if err != nil {
			return nil, nil, err
		}
		err = policies.Default(limiter.Policy{Name: "login", Algorithm: limiter.TokenBucket, Limit: 5, Period: time.Minute})
		if err != nil {
			return nil, nil, errors.Join(err, policies.Close())
		}
		l, err := limiter.New(pool, &limiter.Config{Policies: policies}) // applies overrides
		return l, policies, err
	}
	allow := func(ctx context.Context, l *limiter.Limiter, policies *limiter.Policies, user string) (bool, error) {
		login, err := policies.Get("login") // the database's, or else the default
		if err != nil {
			return false, err
		}
		r, err := l.Allow(ctx, login, user)
		return r.Allowed, err
	}
	_, _ = open, allow
}

// Policies without a database are for NewMemory and for tests.
func ExampleNewPolicies() {
	search := limiter.Policy{Name: "search", Algorithm: limiter.TokenBucket, Limit: 2, Period: time.Minute}
	policies, err := limiter.NewPolicies(search)
	if err != nil {
		fmt.Println(err)
		return
	}
	l := limiter.NewMemory(&limiter.Config{Now: noon, Policies: policies})

	plan := 100.0
	_, err = policies.Apply(ctx, limiter.PolicyEdit{SetOverrides: []limiter.Override{
		{Policy: "search", Key: "big-customer", Limit: &plan, Note: "contract of 2026"},
		{Policy: "search", Key: "health-check", Unlimited: true},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, key := range []string{"someone", "big-customer", "health-check"} {
		p, err := policies.Get("search")
		if err != nil {
			fmt.Println(err)
			return
		}
		r, err := l.AllowN(ctx, p, key, 50)
		fmt.Println(key, r.Allowed, r.Limit, r.Source, err)
	}
	// Output:
	// someone false 2 memory <nil>
	// big-customer true 100 memory <nil>
	// health-check true 2 override <nil>
}

// IfVersion keeps two operators from overwriting each other's changes.
func ExamplePolicies_Apply() {
	policies, err := limiter.NewPolicies()
	if err != nil {
		fmt.Println(err)
		return
	}
	upload := limiter.StoredPolicy{
		Policy: limiter.Policy{Name: "upload", Algorithm: limiter.FixedWindow, Limit: 10, Calendar: limiter.Day},
		Note:   "launch",
	}
	version, err := policies.Apply(ctx, limiter.PolicyEdit{Set: []limiter.StoredPolicy{upload}})
	fmt.Println(version, err)

	upload.Limit, upload.Note = 20, "after the first week"
	_, err = policies.Apply(ctx, limiter.PolicyEdit{IfVersion: version, Set: []limiter.StoredPolicy{upload}})
	fmt.Println(err)

	_, err = policies.Apply(ctx, limiter.PolicyEdit{IfVersion: version, Delete: []string{"upload"}})
	fmt.Println(errors.Is(err, limiter.ErrPolicyChanged))

	changes, err := policies.History(ctx, "upload", 10)
	for _, c := range changes {
		fmt.Println(c.Version, c.Note, c.After.Limit)
	}
	fmt.Println(err)
	// Output:
	// 1 <nil>
	// <nil>
	// true
	// 2 after the first week 20
	// 1 launch 10
	// <nil>
}
