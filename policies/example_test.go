package policies_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

var ctx = context.Background()

// noon is a stopped clock, so that the outputs are the same every time.
func noon() time.Time { return time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC) }

// A program declares its policies as defaults. Operators then change them in the database,
// without a new release.
func ExampleOpen() {
	open := func(ctx context.Context, pool *pgxpool.Pool) (*limiter.Limiter, *policies.Policies, error) {
		live, err := policies.Open(ctx, pool, nil)
		if err != nil {
			return nil, nil, err
		}
		err = live.Default(limiter.PerMinute("login", 5))
		if err != nil {
			return nil, nil, errors.Join(err, live.Close())
		}
		l, err := limiter.New(pool, &limiter.Config{Policies: live}) // applies overrides
		return l, live, err
	}
	allow := func(ctx context.Context, l *limiter.Limiter, live *policies.Policies, user string) (bool, error) {
		login, err := live.Get("login") // the database's, or else the default
		if err != nil {
			return false, err
		}
		r, err := l.Allow(ctx, login, user)
		return r.Allowed, err
	}
	_, _ = open, allow
}

// Policies without a database are for NewMemory and for tests.
func ExampleNew() {
	search := limiter.PerMinute("search", 2)
	live, err := policies.New(search)
	if err != nil {
		fmt.Println(err)
		return
	}
	l := limiter.NewMemory(&limiter.Config{Now: noon, Policies: live})

	plan := 100.0
	_, err = live.Apply(ctx, policies.Edit{SetOverrides: []policies.Override{
		{Policy: "search", Key: "big-customer", Limit: &plan, Note: "contract of 2026"},
		{Policy: "search", Key: "health-check", Unlimited: true},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, key := range []string{"someone", "big-customer", "health-check"} {
		p, err := live.Get("search")
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
	live, err := policies.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	upload := policies.Stored{
		Policy: limiter.Policy{Name: "upload", Algorithm: limiter.FixedWindow, Limit: 10, Calendar: limiter.Day},
		Note:   "launch",
	}
	version, err := live.Apply(ctx, policies.Edit{Set: []policies.Stored{upload}})
	fmt.Println(version, err)

	upload.Limit, upload.Note = 20, "after the first week"
	_, err = live.Apply(ctx, policies.Edit{IfVersion: version, Set: []policies.Stored{upload}})
	fmt.Println(err)

	_, err = live.Apply(ctx, policies.Edit{IfVersion: version, Delete: []string{"upload"}})
	fmt.Println(errors.Is(err, policies.ErrChanged))

	changes, err := live.History(ctx, "upload", 10)
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

// Events delivers the marks that keys have reached, here to a program's log.
func ExamplePolicies_Events() {
	live, err := policies.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	err = live.Events(ctx, func(_ context.Context, e policies.Event) error {
		_, err := fmt.Printf("%s has used %v%% of %s\n", e.Key, 100*e.Mark, e.Policy)
		return err
	})
	fmt.Println(errors.Is(err, limiter.ErrUnsupported)) // policies.Open has a database
	// Output: true
}

// UsageSince returns what a key has spent in each hour or day, here of the last week.
func ExamplePolicies_UsageSince() {
	live, err := policies.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	sums, err := live.UsageSince(ctx, "spend", "acme", time.Now().AddDate(0, 0, -7), limiter.Day)
	for _, s := range sums {
		fmt.Println(s.At.Format(time.DateOnly), s.Units)
	}
	fmt.Println(errors.Is(err, limiter.ErrUnsupported)) // policies.Open has a database
	// Output: true
}
