// Package dashboard tests the dashboard's source over a real PostgreSQL server.
package dashboard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/webpagetest"
	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }

var secret = []byte("sixteen bytes at least")

// open returns a source over pool.
func open(t *testing.T, pool *pgxpool.Pool, secret []byte) *dashboard.Database {
	t.Helper()
	s := must.OK(dashboard.Open(t.Context(), pool, secret, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// ten returns a policy of 10 units whose period is longer than a test.
func ten(name string, a limiter.Algorithm) limiter.Policy {
	return limiter.Policy{Name: name, Algorithm: a, Limit: 10, Period: 1000 * time.Hour}
}

// denied writes denials of a key, some ten minutes ago.
func denied(t *testing.T, pool *pgxpool.Pool, p limiter.Policy, key string, ago int, n int64) {
	t.Helper()
	testworld.Exec(t, pool, `INSERT INTO pglimit_denial (denials, shadowed, blocked, above_burst, overloaded, units, slot_us, last_denied_at_us, policy, key, algorithm)
SELECT $1::bigint, 1, 2, 3, 4, $1::bigint * 2, c.us / 60000000 * 60000000, c.us, $2, $3, $4
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - $5::bigint * 600000000 AS us) AS c`, n, p.Name, key, string(algorithm.Name(p.Algorithm).Table()), ago)
}

func as(key string) dashboard.Ref       { return dashboard.Ref{Key: key} }
func asStored(key string) dashboard.Ref { return dashboard.Ref{Key: key, Stored: true} }

func on(ref dashboard.Ref, p limiter.Policy) dashboard.Target {
	return dashboard.Target{Ref: ref, Policy: p.Name, Algorithm: p.Algorithm}
}

// TestKey: a key has its rows under all policies and algorithms, reservations, overrides
// and denials; with a secret it is found by its name and by its hash.
func TestKey(t *testing.T) {
	t.Parallel()
	for _, secret := range [][]byte{nil, secret} {
		pool := testworld.NewPool(t)
		s := open(t, pool, secret)
		l := testworld.NewLimiter(t, pool, &limiter.Config{KeySecret: secret})
		stored := keys.Stored("alice", secret)
		for i, a := range algorithm.Tables {
			p := ten("every", limiter.Algorithm(a))
			testworld.Must(t)(l.Charge(t.Context(), p, "alice", float64(i+1)))
			testworld.Must(t)(l.Charge(t.Context(), p, "bob", 1))
		}
		tokens := ten("every", limiter.TokenBucket)
		must.OK(l.Reserve(t.Context(), tokens.Request("alice", 2), time.Hour))(t)
		denied(t, pool, tokens, stored, 0, 3)
		denied(t, pool, tokens, stored, 5, 4)
		denied(t, pool, tokens, stored, 200, 5) // more than a day ago
		denied(t, pool, ten("gone", limiter.FixedWindow), stored, 1, 7)
		testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, limit_units, note) VALUES ('every', $1, 99, 'a note')`, stored)
		for _, ref := range []dashboard.Ref{as("alice"), asStored(stored)} {
			k := must.OK(s.Key(t.Context(), ref))(t)
			d := must.OK(s.Denials(t.Context(), dashboard.DenialQuery{Ref: ref, Hours: 24}))(t).Slots
			if k.Stored != stored || len(k.Keys) != 7 || len(k.Reservations) != 1 || len(k.Overrides) != 1 || len(d) != 3 {
				t.Fatalf("%+v: %+v", ref, k)
			}
			if r := k.Reservations[0]; r.Units != 2 || r.Policy != "every" || r.Algorithm != algorithm.TokenBucket || r.ExpiresAt.Before(k.At) {
				t.Errorf("reservation %+v", r)
			}
			if o := k.Overrides[0]; o.Policy != "every" || *o.Limit != 99 || o.Note != "a note" {
				t.Errorf("override %+v", o)
			}
			if d[2].Denials != 3 || d[1].Policy != "gone" || d[0].Denials != 4 || d[2].Start.After(k.At) || d[0].Units != 8 || d[0].Shadowed != 1 {
				t.Errorf("denials %+v", d)
			}
			for _, r := range k.Keys {
				switch {
				case r.Policy == "gone":
					if r.Denials != 7 || r.Level != nil || r.UpdatedAt != nil {
						t.Errorf("a key without a row: %+v", r)
					}
				case r.Level == nil || r.Burst == nil || r.Share == nil || *r.Burst != 10 || *r.Level < 0.99 || r.UpdatedAt == nil || r.BlockedUntil != nil:
					t.Errorf("%+v", r)
				case r.Algorithm == algorithm.TokenBucket && (r.Denials != 7 || r.Reservations != 1):
					t.Errorf("%+v", r)
				}
			}
		}
		other, err := s.Key(t.Context(), as("nobody"))
		if err != nil || len(other.Keys)+len(other.Denials) != 0 {
			t.Errorf("nobody: %+v, %v", other, err)
		}
		if byHash, err := s.Key(t.Context(), as(stored)); secret != nil && (err != nil || len(byHash.Keys) != 0) {
			t.Errorf("the hash is not a caller's key: %+v, %v", byHash, err)
		}
	}
}

// TestKeys: the orders, the filters and the bound.
func TestKeys(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	s := open(t, pool, nil)
	l := testworld.NewLimiter(t, pool, nil)
	p, q := ten("p", limiter.FixedWindow), ten("q", limiter.TokenBucket)
	for i, key := range []string{"a1", "a2", "a3"} {
		testworld.Must(t)(l.Charge(t.Context(), p, key, float64(9-2*i)))
		testworld.Must(t)(l.Charge(t.Context(), q, key, float64(2+2*i)))
	}
	must.Succeed(t, l.Block(t.Context(), p, "b", time.Hour))
	denied(t, pool, p, "a3", 0, 20)
	denied(t, pool, q, "a1", 0, 30)
	denied(t, pool, q, "gone", 0, 10)
	for _, c := range []struct {
		q    dashboard.Query
		want string
		more bool
	}{
		{dashboard.Query{Order: inspect.ByDenials, Limit: 5}, "q a1, p a3, q gone", false},
		{dashboard.Query{Order: inspect.ByDenials, Limit: 2}, "q a1, p a3", true},
		{dashboard.Query{Order: inspect.ByDenials, Limit: 5, Policy: "p"}, "p a3", false},
		{dashboard.Query{Order: inspect.ByShare, Limit: 5, Policy: "q"}, "q a3, q a2, q a1, q gone", false},
		{dashboard.Query{Order: inspect.ByRecent, Limit: 3}, "q gone, q a1, p a3", true},
		{dashboard.Query{Order: inspect.ByShare, Limit: 9, Prefix: "a"}, "p a1, p a2, q a3, p a3, q a2, q a1", false},
		{dashboard.Query{Order: inspect.ByShare, Limit: 2, Prefix: "a"}, "p a1, p a2", true},
		{dashboard.Query{Order: inspect.ByDenials, Limit: 9, Prefix: "g"}, "q gone", false},
		{dashboard.Query{Order: inspect.ByShare, Limit: 9, Prefix: "b"}, "p b", false},
		{dashboard.Query{Order: inspect.ByShare, Limit: 9, Prefix: "none"}, "", false},
	} {
		k, err := s.Keys(t.Context(), c.q)
		var got []string
		for _, r := range k.Rows {
			got = append(got, r.Policy+" "+r.Key)
		}
		if err != nil || strings.Join(got, ", ") != c.want || k.More != c.more {
			t.Errorf("%+v: %s, more %v, %v; want %s", c.q, got, k.More, err, c.want)
		}
	}
	if _, err := s.Keys(t.Context(), dashboard.Query{Order: "other", Limit: 5}); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("an unknown order: %v", err)
	}
}

// TestChanges: block, unblock and reset work on the key as given and as stored, with the
// limiter's view of it.
func TestChanges(t *testing.T) {
	t.Parallel()
	for _, secret := range [][]byte{nil, secret} {
		pool := testworld.NewPool(t)
		s := open(t, pool, secret)
		l := testworld.NewLimiter(t, pool, &limiter.Config{KeySecret: secret, DisableDenyCache: true})
		for _, a := range limiter.Algorithms() {
			p := ten("p", a)
			for _, ref := range []dashboard.Ref{as("alice"), asStored(keys.Stored("alice", secret))} {
				check := func(what string, level float64, reason limiter.Reason) {
					t.Helper()
					r := testworld.Must(t)(l.Check(t.Context(), p, "alice", 0))
					if r.Reason != reason || r.Level < level-0.01 || r.Level > level {
						t.Errorf("%s, %s: %+v", a, what, r)
					}
				}
				must.Succeed(t, s.Block(t.Context(), on(ref, p), time.Hour))
				check("blocked without a row", 0, limiter.ReasonBlocked)
				for _, want := range []bool{true, false} {
					if found, err := s.Unblock(t.Context(), on(ref, p)); err != nil || found != want {
						t.Errorf("%s: unblock: %v, %v", a, found, err)
					}
				}
				testworld.Must(t)(l.Charge(t.Context(), p, "alice", 4))
				check("unblocked", 4, "")
				for _, want := range []bool{true, false} {
					if found, err := s.Reset(t.Context(), on(ref, p)); err != nil || found != want {
						t.Errorf("%s: reset: %v, %v", a, found, err)
					}
				}
				check("reset", 0, "")
			}
		}
		if err := s.Block(t.Context(), dashboard.Target{Ref: as("k"), Policy: "Not a name", Algorithm: limiter.GCRA}, time.Hour); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("a bad policy: %v", err)
		}
	}
}

// TestLockedRow: a change of a row that another transaction has locked is an error in time.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	s := open(t, pool, nil)
	p := ten("p", limiter.GCRA)
	must.Succeed(t, s.Block(t.Context(), on(as("k"), p), time.Hour))
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	must.OK(tx.Exec(t.Context(), `SELECT 1 FROM pglimit_token_bucket FOR UPDATE`))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // as the dashboard's
	defer cancel()
	if _, err := s.Unblock(ctx, on(as("k"), p)); !errors.Is(err, limiter.ErrUnavailable) || ctx.Err() != nil {
		t.Errorf("unblock: %v", err)
	}
}

// TestPoliciesAndHistory: they are those of the database, with changes of other programs.
func TestPoliciesAndHistory(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	s := open(t, pool, nil)
	if p, err := s.Policies(t.Context()); err != nil || len(p.Policies) != 0 || p.At.IsZero() {
		t.Fatalf("at first: %+v, %v", p, err)
	}
	other := must.OK(policies.Open(t.Context(), pool, nil))(t)
	defer other.Close()
	login := policies.Stored{Policy: ten("login", limiter.GCRA), Note: "first"}
	must.OK(other.Apply(t.Context(), policies.Edit{Set: []policies.Stored{login}}))(t)
	login.Limit, login.Note = 20, "second"
	must.OK(other.Apply(t.Context(), policies.Edit{
		Set: []policies.Stored{login}, SetOverrides: []policies.Override{{Policy: "login", Key: "k", Unlimited: true}},
	}))(t)
	var p dashboard.Policies
	for p.Version < other.Version() { // it follows
		p = must.OK(s.Policies(t.Context()))(t)
	}
	if len(p.Policies) != 1 || p.Policies[0].Limit != 20 || p.Overrides[p.Policies[0].Name] != 1 || p.Policies[0].Note != "second" {
		t.Errorf("%+v", p)
	}
	h, err := s.History(t.Context(), "login", 10)
	if err != nil || len(h) != 3 || h[0].OverrideAfter == nil || h[1].Before.Limit != 10 || h[1].After.Limit != 20 || h[2].Before != nil {
		t.Errorf("%+v, %v", h, err)
	}
	if h, err := s.History(t.Context(), "", 1); err != nil || len(h) != 1 || h[0].Key != "k" {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestDenials: the last day by slot and policy.
func TestDenials(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	s := open(t, pool, nil)
	p, q := ten("p", limiter.GCRA), ten("q", limiter.GCRA)
	denied(t, pool, p, "a", 0, 3)
	denied(t, pool, p, "b", 0, 4)
	denied(t, pool, q, "a", 0, 5)
	denied(t, pool, p, "a", 100, 6)
	denied(t, pool, p, "a", 145, 7) // more than a day ago
	for _, c := range []struct {
		q    dashboard.DenialQuery
		want string
	}{
		{dashboard.DenialQuery{Hours: 24}, "p 6 1 2 3 4 12; p 7 2 4 6 8 14; q 5 1 2 3 4 10; "},
		{dashboard.DenialQuery{Hours: 1}, "p 7 2 4 6 8 14; q 5 1 2 3 4 10; "},
		{dashboard.DenialQuery{Hours: 6, Ref: as("b")}, "p 4 1 2 3 4 8; "},
		{dashboard.DenialQuery{Hours: 168, Ref: as("a")}, "p 7 1 2 3 4 14; p 6 1 2 3 4 12; p 3 1 2 3 4 6; q 5 1 2 3 4 10; "},
		{dashboard.DenialQuery{Hours: 24, Ref: as("none")}, ""},
	} {
		d, err := s.Denials(t.Context(), c.q)
		got := ""
		for _, slot := range d.Slots {
			got += fmt.Sprintf("%s %d %d %d %d %d %v; ", slot.Policy, slot.Denials, slot.Shadowed, slot.Blocked, slot.AboveBurst, slot.Overloaded, slot.Units)
			if !slot.Start.Equal(slot.Start.Truncate(c.q.Slot())) || slot.Start.Before(c.q.From(d.At)) {
				t.Errorf("%+v: a slot from %v", c.q, slot.Start)
			}
		}
		if err != nil || got != c.want || d.Hours != c.q.Hours || d.SlotS != c.q.Slot().Seconds() {
			t.Errorf("%+v: %s %+v, %v\nwant %s", c.q, got, d, err, c.want)
		}
	}
}

// examined asks for the doctor's checks until a busy machine has the time for them.
func examined(t *testing.T, s *dashboard.Database) (r doctor.Report, err error) {
	t.Helper()
	testworld.Eventually(t, "the doctor has the time for its checks", func(context.Context) (bool, error) {
		r, err = s.Doctor(t.Context())
		return !errors.Is(err, context.DeadlineExceeded), nil
	})
	return r, err
}

// TestDoctor: the checks are the doctor's.
func TestDoctor(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	r, err := examined(t, open(t, pool, nil))
	if err != nil || len(r.Checks) < 20 || r.At.IsZero() {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, c := range r.Checks {
		if c.Name == "" || c.Message == "" || c.Verdict > doctor.Fail {
			t.Errorf("%+v", c)
		}
	}
}

// TestAway: without tables New says what to do, and while the database is away every answer
// is an error.
func TestAway(t *testing.T) {
	t.Parallel()
	if _, err := dashboard.Open(t.Context(), testworld.Connect(t, testworld.EmptyDatabase(t)), nil, nil); !errors.Is(err, limiter.ErrNotMigrated) {
		t.Errorf("without tables: %v", err)
	}
	pool := testworld.NewPool(t)
	s := open(t, pool, nil)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	p := ten("p", limiter.GCRA)
	edit := dashboard.Edit{Policy: &policies.Stored{Policy: p}}
	for name, call := range map[string]func() error{
		"Policies":  func() error { _, err := s.Policies(ctx); return err },
		"History":   func() error { _, err := s.History(ctx, "", 1); return err },
		"Keys":      func() error { _, err := s.Keys(ctx, dashboard.Query{Order: inspect.ByShare, Limit: 1}); return err },
		"Key":       func() error { _, err := s.Key(ctx, as("k")); return err },
		"Denials":   func() error { _, err := s.Denials(ctx, dashboard.DenialQuery{Hours: 24}); return err },
		"Doctor":    func() error { _, err := s.Doctor(ctx); return err },
		"Search":    func() error { _, err := s.Search(ctx, "k"); return err },
		"Overrides": func() error { _, err := s.Overrides(ctx, "p"); return err },
		"Current":   func() error { _, err := s.Current(ctx, edit); return err },
		"Facts":     func() error { _, err := s.Facts(ctx, edit, p.Algorithm, time.Now(), 1); return err },
		"Apply":     func() error { _, err := s.Apply(ctx, edit); return err },
		"Block":     func() error { return s.Block(ctx, on(as("k"), p), time.Hour) },
		"Unblock":   func() error { _, err := s.Unblock(ctx, on(as("k"), p)); return err },
		"Reset":     func() error { _, err := s.Reset(ctx, on(as("k"), p)); return err },
		"Why":       func() error { _, err := s.Why(ctx, as("k"), time.Time{}); return err },
	} {
		if err := call(); err == nil || errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Keys(t.Context(), dashboard.Query{Order: inspect.ByShare, Limit: 1}); err != nil {
		t.Errorf("an error is remembered: %v", err)
	}
}

// TestReader: a role that may only read sees everything, and changes nothing.
func TestReader(t *testing.T) {
	t.Parallel()
	owner := testworld.NewPool(t)
	p := ten("p", limiter.GCRA)
	testworld.Must(t)(testworld.NewLimiter(t, owner, nil).Charge(t.Context(), p, "k", 4))
	denied(t, owner, p, "k", 0, 3)
	role := pgx.Identifier{fmt.Sprint("reader_", time.Now().UnixNano())}.Sanitize()
	testworld.Exec(t, owner, `CREATE ROLE `+role)
	t.Cleanup(func() { // roles are the server's
		ctx := context.Background()
		_, err := owner.Exec(ctx, `DROP OWNED BY `+role)
		if err == nil {
			_, err = owner.Exec(ctx, `DROP ROLE `+role)
		}
		if err != nil {
			t.Error(err)
		}
	})
	testworld.Exec(t, owner, `GRANT SELECT ON ALL TABLES IN SCHEMA public TO `+role)
	reader := testworld.Connect(t, owner.Config().ConnString(), func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `SET ROLE `+role)
			return err
		}
	})
	s := open(t, reader, nil)
	k, err := s.Key(t.Context(), as("k"))
	if err != nil || len(k.Keys) != 1 || len(k.Found.Denials) != 1 {
		t.Errorf("%+v, %v", k, err)
	}
	for name, call := range map[string]func() error{
		"Policies": func() error { _, err := s.Policies(t.Context()); return err },
		"History":  func() error { _, err := s.History(t.Context(), "", 1); return err },
		"Keys": func() error {
			_, err := s.Keys(t.Context(), dashboard.Query{Order: inspect.ByShare, Limit: 1})
			return err
		},
		"Denials": func() error {
			_, err := s.Denials(t.Context(), dashboard.DenialQuery{Ref: as("k"), Hours: 24})
			return err
		},
		"Why": func() error {
			why, err := s.Why(t.Context(), as("k"), time.Time{})
			if err == nil && (len(why.Policies) != 1 || why.Policies[0].Denied == nil) {
				err = fmt.Errorf("%+v", why)
			}
			return err
		},
		"Doctor":    func() error { _, err := examined(t, s); return err },
		"Search":    func() error { _, err := s.Search(t.Context(), "k"); return err },
		"Overrides": func() error { _, err := s.Overrides(t.Context(), "p"); return err },
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Block(t.Context(), on(as("k"), p), time.Hour); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("block: %v", err)
	}
	if _, err := s.Reset(t.Context(), on(as("k"), p)); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("reset: %v", err)
	}
}

// TestKeysAfterChange: a change is in the next answer, even if the last answer was slow and
// would otherwise be used again.
func TestKeysAfterChange(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	s := open(t, pool, nil)
	p := ten("p", limiter.GCRA)
	testworld.Must(t)(testworld.NewLimiter(t, pool, nil).Charge(t.Context(), p, "k", 4))
	keys := func() dashboard.Keys {
		k, err := s.Keys(t.Context(), dashboard.Query{Order: inspect.ByShare, Limit: 1})
		if err != nil || len(k.Rows) != 1 {
			t.Errorf("%+v, %v", k, err)
		}
		return k
	}
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	must.OK(tx.Exec(t.Context(), `LOCK TABLE pglimit_token_bucket`))(t)
	first := make(chan dashboard.Keys)
	go func() { first <- keys() }()
	testworld.AwaitBlocked(t, pool)
	testworld.Commit(t, tx)
	before := <-first
	must.Succeed(t, s.Block(t.Context(), on(as("k"), p), time.Hour))
	if after := keys(); before.Rows[0].BlockedUntil != nil || after.Rows[0].BlockedUntil == nil {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// TestReadersKeepNoChangeOut: while 64 readers wait for a locked table, an operator blocks,
// unblocks and resets a key.
func TestReadersKeepNoChangeOut(t *testing.T) {
	t.Parallel()
	url := testworld.NewDatabase(t)
	pool := testworld.Connect(t, url)
	page := must.OK(dashboard.New(dashboard.Config{Source: open(t, testworld.Connect(t, url, testworld.FourConnections), nil), Token: "token", Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler)}))(t)
	site := webpagetest.New(t, page)
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	must.OK(tx.Exec(t.Context(), `LOCK TABLE pglimit_denial`))(t)
	var readers sync.WaitGroup
	for range 64 {
		readers.Go(func() {
			if answer, text := site.Call(t, http.MethodPost, "/api/key", `{"key":"alice"}`); answer.StatusCode != http.StatusOK {
				t.Error(answer.Status, text)
			}
		})
	}
	testworld.Eventually(t, "four readers wait for the lock", func(ctx context.Context) (bool, error) {
		n, err := testworld.Blocked(ctx, pool)
		return n == 4, err
	})
	for path, more := range map[string]string{"/api/block": `,"for":"1h"`, "/api/unblock": "", "/api/reset": ""} {
		answer, text := site.Call(t, http.MethodPost, path, `{"key":"alice","policy":"login","algorithm":"gcra"`+more+`}`, dashboard.TokenHeader, "token")
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s", path, answer.Status, text)
		}
	}
	testworld.Commit(t, tx)
	readers.Wait()
}
