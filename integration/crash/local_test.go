package crash

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/bound"
	conformance "github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// TestLocalOnAStoppedServer: while a server is stopped, each of two processes admits at most its
// share of the bound, less that of what it knew. Then the row has all of it, once, and the key
// is as full as if the server had decided.
func TestLocalOnAStoppedServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	own := testworld.OwnServer(t)
	template := must.OK(own.Template(ctx, "local", migrations.Up))(t)
	url := template.New(t)
	var processes [2]*limiter.Limiter
	for i := range processes {
		pool := testworld.Connect(t, url, func(c *pgxpool.Config) { c.ConnConfig.DialFunc = testworld.NewDialer(own.URL).Dial })
		processes[i] = testworld.NewLimiter(t, pool, &limiter.Config{BreakAfter: 1, BreakFor: 50 * time.Millisecond})
	}
	policies := testworld.Variants(100, 100_000*time.Hour)
	for i := range policies {
		p := &policies[i]
		p.OnError, p.LocalShare = limiter.FailLocal, 0.5
		for _, l := range processes {
			if r := testworld.Must(t)(l.AllowN(ctx, *p, testworld.Variant(*p), 20)); !r.Allowed {
				t.Fatalf("%s: %+v", testworld.Variant(*p), r)
			}
		}
		testworld.Must(t)(processes[0].Check(ctx, *p, testworld.Variant(*p), 0)) // it learns of the other's units
	}
	must.Succeed(t, own.Stop(ctx))
	from := time.Now()
	for _, p := range policies {
		key, all := testworld.Variant(p), 0.0
		for i, l := range processes {
			n := 0.0
			for testworld.Must(t)(l.Allow(ctx, p, key)).Allowed {
				n++
			}
			part := p
			part.Limit, part.Burst = p.Limit*p.LocalShare, p.Burst*p.LocalShare
			if used := 0.5 * 40; n != 30 || bound.Exceeded(n+used, bound.Allowed([]bound.Plan{conformance.Plan(&part)}, from, from)) {
				t.Errorf("%s: process %d admitted %v", key, i, n)
			}
			all += n
		}
		if r := testworld.Must(t)(processes[0].Check(ctx, p, key, 1)); r.Allowed || r.Source != limiter.SourceDegraded {
			t.Errorf("%s: after %v: %+v", key, all, r)
		}
	}
	must.Succeed(t, own.Restart(ctx))
	for _, p := range policies {
		key := testworld.Variant(p)
		testworld.Eventually(t, key+": what was granted is charged", func(context.Context) (bool, error) {
			r, err := processes[0].Check(ctx, p, key, 0)
			return r.Source == limiter.SourceDatabase && r.Level > 99.9, err
		})
		for _, l := range processes {
			if r := testworld.Must(t)(l.Allow(ctx, p, key)); r.Allowed || r.Source == limiter.SourceDegraded {
				t.Errorf("%s: %+v", key, r)
			}
		}
	}
}
