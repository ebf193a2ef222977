package faults

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/localpg"
	"github.com/pglimit/pglimit/internal/must"
)

// failovers kill the primary and promote its standby. Shortly before, the primary stops
// sending: the standby has a lag when the primary dies.
var failovers = []fault{failover("failover, asynchronous", false), failover("failover, synchronous", true)}

// failover is a fault of two servers. What only the primary had is lost. If replication is
// synchronous, nothing of that was acknowledged. Else it was acknowledged within the lag
// before the kill.
func failover(name string, synchronous bool) fault {
	var p *pair
	return fault{
		name: name,
		server: func(t *testing.T) *server {
			p = newPair(t, synchronous)
			return &server{url: func() string { return p.now.Load().URL() }, local: true}
		},
		do: func(ctx context.Context, t *testing.T, s *scene) { p.failOver(ctx, t, s) },
		check: func(t *testing.T, s *scene) {
			_, lossy := s.books.orders()
			lost := s.missing(t, lossy)
			t.Logf("%d orders acknowledged within the lag are lost", len(lost))
			if !synchronous && len(lost) == 0 {
				t.Error("nothing that was acknowledged is lost: this says nothing of the bound")
			}
		},
	}
}

// pair is a primary and its standby.
type pair struct {
	primary, standby *localpg.Server
	synchronous      bool
	now              atomic.Pointer[localpg.Server] // the one that clients use
}

func newPair(t *testing.T, synchronous bool) *pair {
	t.Helper()
	p := &pair{primary: startServer(t, localpg.Options{Settings: roomy}), synchronous: synchronous}
	p.now.Store(p.primary)
	p.standby = startStandby(t, p.primary, "standby")
	pool := testworld.Connect(t, p.primary.URL())
	want := "async"
	if synchronous {
		want = "sync"
		testworld.Exec(t, pool, "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
		testworld.Exec(t, pool, "SELECT pg_reload_conf()")
	}
	eventually(t, "the standby replicates", func(ctx context.Context) error {
		var state string
		err := pool.QueryRow(ctx, "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'").Scan(&state)
		if err == nil && state != want {
			err = fmt.Errorf("the standby is %s", state)
		}
		return err
	})
	return p
}

// silence is how long the primary sends nothing before it is killed: longer than a request
// waits for its answer.
const silence = 1500 * time.Millisecond

// failOver stops replication, kills the primary, measures the lag and promotes the standby.
func (p *pair) failOver(ctx context.Context, t *testing.T, s *scene) {
	beats := p.beat(ctx, t, s)
	s.let(200 * time.Millisecond)
	sender := testworld.Value[int](t, s.pool, "SELECT pid FROM pg_stat_replication")
	must.Succeed(t, syscall.Kill(sender, syscall.SIGSTOP))
	if p.synchronous {
		p.expectNoAnswer(ctx, t, s)
	} else {
		s.let(silence)
	}
	killed := time.Now()
	must.Succeed(t, p.primary.Kill())
	sent := beats()
	standby := testworld.Connect(t, p.standby.URL())
	defer standby.Close() // its goroutines would count as the limiters'
	eventually(t, "the standby has applied what it received", func(context.Context) error {
		return unless(testworld.Value[bool](t, standby, `SELECT pg_last_wal_replay_lsn() >= pg_last_wal_receive_lsn()
			AND NOT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)`), "it has not")
	})
	// What was acknowledged before the last beat of the standby was sent, was committed
	// before it.
	ours := testworld.Connect(t, p.standby.URL(), func(config *pgxpool.Config) { config.ConnConfig.Database = s.pool.Config().ConnConfig.Database })
	last := testworld.Value[int](t, ours, "SELECT max(n) FROM beats")
	ours.Close()
	t.Logf("the standby's lag at the kill: %v", killed.Sub(sent[last]).Round(time.Millisecond))
	if !p.synchronous {
		s.books.mayLose(loss{from: sent[last], until: time.Now()})
	}
	if !testworld.Value[bool](t, standby, "SELECT pg_promote()") {
		t.Fatal("the standby was not promoted in time")
	}
	p.now.Store(p.standby)
}

// expectNoAnswer sends a request under an idempotency key for a while. The first one ends
// without an answer, and PostgreSQL then shows what it wrote, although the standby does not
// have it. No request under another idempotency key may get that row as its answer.
func (p *pair) expectNoAnswer(ctx context.Context, t *testing.T, s *scene) {
	c := newClient(t, overPGX, s.address, dialer{dial(s.server.url), s})
	defer c.close()
	request := budgets[0].Request("repeated", 1)
	request.IdempotencyKey = "repeated"
	for began := time.Now(); time.Since(began) < 2*silence; {
		if r, err := c.l.Do(ctx, request); err == nil {
			t.Errorf("while the standby had nothing of it, a request was answered: %+v", r)
			return
		}
	}
}

// beat commits a row every few milliseconds until the primary is gone. The function that it
// returns waits for that, and returns when each was sent.
func (p *pair) beat(ctx context.Context, t *testing.T, s *scene) (sent func() []time.Time) {
	testworld.Exec(t, s.pool, "CREATE TABLE beats (n integer)")
	conn, err := pgx.Connect(ctx, s.address)
	if err != nil {
		t.Fatal(err)
	}
	var times []time.Time
	var ends sync.WaitGroup
	ends.Go(func() {
		defer conn.Close(context.WithoutCancel(ctx))
		for n := 0; err == nil; n++ {
			times = append(times, time.Now())
			_, err = conn.Exec(ctx, "INSERT INTO beats VALUES ($1)", n)
			s.let(2 * time.Millisecond)
		}
	})
	return func() []time.Time { ends.Wait(); return times }
}
