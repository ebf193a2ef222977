package policies

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/policies"
)

// TestNotificationsTellNothing: any role may listen and notify. It hears the schema's name
// only, and its own notifications change nothing.
func TestNotificationsTellNothing(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	p := open(t, pool, policies.Config{PollEvery: time.Hour})
	conn := must.OK(pool.Acquire(t.Context()))(t)
	defer conn.Release()
	schema := testworld.Value[string](t, pool, `SELECT current_schema()::text`)
	must.OK(conn.Exec(t.Context(), `LISTEN pglimit_policies`))(t)
	edit := func(limit float64) int64 {
		return apply(t, p.Policies, policies.Edit{Set: []policies.Stored{{Policy: login, Note: "a secret note"}},
			SetOverrides: []policies.Override{{Policy: "login", Key: "alice", Limit: &limit}}})
	}
	edit(7)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // prevents a hang
	defer cancel()
	for {
		n := must.OK(conn.Conn().WaitForNotification(ctx))(t)
		if len(n.Payload) > 6 && n.Payload[:6] == "probe " {
			continue // random text
		}
		if n.Payload != schema {
			t.Errorf("got %q, want %q", n.Payload, schema)
		}
		break
	}
	for _, payload := range []string{"", "probe ", "probe x", schema, "other"} {
		testworld.Exec(t, pool, `SELECT pg_notify('pglimit_policies', $1) FROM generate_series(1, 100)`, payload)
	}
	p.await(t, edit(9))
	if got, unlimited, err := p.For("login", "alice"); err != nil || unlimited || got.Limit != 9 {
		t.Errorf("%+v, %v, %v", got, unlimited, err)
	}
}

// TestFloodOfNotifications: a role that may only connect sends 170 MB of notifications. They are not kept, and
// changes during the flood are seen. It does not run in parallel: it measures the heap.
func TestFloodOfNotifications(t *testing.T) {
	pool := testworld.NewPool(t)
	p := open(t, pool, policies.Config{PollEvery: time.Hour})
	heap := func() int {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapSys >> 20) // does not shrink
	}
	before, role := heap(), testworld.RuntimeRole(t, pool.Config().ConnString())
	var senders sync.WaitGroup
	var sending atomic.Int64
	for range 2 {
		stranger := testworld.Connect(t, role)
		sending.Add(1)
		senders.Go(func() {
			defer sending.Add(-1)
			for range 25 {
				if _, err := stranger.Exec(t.Context(), `SELECT pg_notify('pglimit_policies', repeat('x', 7000) || i) FROM generate_series(1, 500) AS i`); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := 0; sending.Load() > 0; i++ {
		testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('p' || $1::int, 'gcra', 1, 1)`, i)
		p.await(t, version(t, pool))
	}
	senders.Wait()
	if after := heap(); after > before+64 {
		t.Errorf("the heap grew from %d to %d MB", before, after)
	}
}
