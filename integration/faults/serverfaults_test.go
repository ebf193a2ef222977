package faults

import (
	"context"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/pglimittest"
)

// serverFaults are each done to limiters over pgx, and to limiters over both drivers of
// database/sql.
var serverFaults = slices.Concat(
	overBoth(fault{name: "kill -9 of the server", do: killServerOften, check: noDeadlock, causes: []error{limiter.ErrUnavailable}}, overPGX),
	[]fault{{
		name: "kill -9, commits before the disk", quick: true, server: lateServer, relaxed: true,
		do: killLateServer, check: noDeadlock, causes: []error{limiter.ErrUnavailable},
	}},
	overBoth(fault{name: "server stopped for 5 s", do: stopServer, causes: []error{limiter.ErrUnavailable}}),
	overBoth(fault{name: "connections terminated", do: terminateConnections, check: noDeadlock, causes: []error{limiter.ErrUnavailable}}, overSQL),
	overBoth(fault{name: "pool exhausted", do: exhaustPools, causes: []error{limiter.ErrOverloaded}}),
	overBoth(fault{name: "contexts end after 1-5 ms", do: leaveEarly, causes: []error{context.DeadlineExceeded}}),
)

// overBoth returns a fault for pgx and one for database/sql. Those of quick are quick.
func overBoth(f fault, quick ...driver) []fault {
	f.quick = slices.Contains(quick, overPGX)
	other := f
	other.name += ", database/sql"
	other.over = []driver{overSQL, overLibPQ}
	other.quick = slices.Contains(quick, overSQL)
	return []fault{f, other}
}

// killServer kills the server and starts it again.
func killServer(ctx context.Context, t *testing.T, s *scene) {
	must.Succeed(t, s.server.kill(ctx))
	must.Succeed(t, s.server.restart(ctx))
	s.pool.Reset()
	s.audit(ctx, t, "after the crash")
}

// killServerOften kills the server, in the long form three times.
func killServerOften(ctx context.Context, t *testing.T, s *scene) {
	for i := range testworld.Size(1, 3) {
		if i > 0 {
			s.let(3 * time.Second) // the callers are back
		}
		killServer(ctx, t, s)
	}
}

// lateServer is a server whose sessions do not wait for the disk when they commit, unless
// the limiter makes them.
func lateServer(t *testing.T) *server {
	own := testworld.OwnServer(t, pglimittest.Setting("synchronous_commit", "off"))
	return &server{url: own.URL, kill: own.Kill, restart: own.Restart, local: own.Backend() == "local"}
}

// killLateServer kills such a server. What was requested of Durable policies must be there.
// The rest may lose what PostgreSQL had up to three times wal_writer_delay to write: Relaxed
// policies, and the transactions of the application. A server that has just written its WAL
// loses nothing, so one kill is not enough.
func killLateServer(ctx context.Context, t *testing.T, s *scene) {
	bound := testworld.Value[int](t, s.pool, "SELECT 3 * setting::int FROM pg_settings WHERE name = 'wal_writer_delay' AND unit = 'ms'")
	for range 3 {
		s.let(time.Duration(2*bound) * time.Millisecond)
		from := time.Now().Add(time.Duration(-bound) * time.Millisecond)
		killServer(ctx, t, s)
		for _, policies := range []string{"relaxed-", "orders-"} {
			s.books.mayLose(loss{from, time.Now(), policies})
		}
	}
}

// stopServer stops all processes of the server for a while: it neither answers nor closes
// a connection.
func stopServer(ctx context.Context, t *testing.T, s *scene) {
	s.server.needLocal(t)
	var postmaster int
	var children []int
	c := must.OK(s.pool.Acquire(ctx))(t)
	defer c.Release()
	read := func(sql string, into any) {
		must.Succeed(t, c.QueryRow(ctx, sql).Scan(into))
	}
	send := func(signal syscall.Signal, pids ...int) {
		for _, pid := range pids {
			if err := syscall.Kill(pid, signal); err != nil && err != syscall.ESRCH {
				t.Errorf("%v to process %d: %v", signal, pid, err)
			}
		}
	}
	read("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int", &postmaster)
	send(syscall.SIGSTOP, postmaster) // it starts no process from here on
	defer send(syscall.SIGCONT, postmaster)
	read("SELECT array_agg(pid) FROM pg_stat_activity", &children)
	send(syscall.SIGSTOP, children...)
	defer send(syscall.SIGCONT, children...)
	s.let(5 * time.Second)
}

// terminateConnections ends all sessions of the load, over and over.
func terminateConnections(ctx context.Context, t *testing.T, s *scene) {
	const terminate = `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid))
		FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`
	ended := 0
	for end := time.Now().Add(testworld.Size(700*time.Millisecond, 6*time.Second)); time.Now().Before(end); {
		ended += testworld.Value[int](t, s.pool, terminate)
		s.let(rand.N(300 * time.Millisecond))
		s.audit(ctx, t, "under load")
	}
	t.Logf("%d sessions were ended", ended)
}

// exhaustPools holds all connections of the limiters' pools, as an application does whose
// handlers keep them.
func exhaustPools(ctx context.Context, t *testing.T, s *scene) {
	for _, c := range s.clients {
		for range connections {
			release := must.OK(c.hold(ctx))(t)
			defer release()
		}
	}
	s.let(testworld.Size(1500*time.Millisecond, 5*time.Second)) // longer than a limiter waits for one
}

// leaveEarly makes the callers leave each request after 1 to 5 ms.
func leaveEarly(_ context.Context, _ *testing.T, s *scene) {
	stay := s.callersLeave(func() time.Duration { return time.Millisecond + rand.N(4*time.Millisecond) })
	defer stay()
	s.let(testworld.Size(time.Second, 8*time.Second))
}
