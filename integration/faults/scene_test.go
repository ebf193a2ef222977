package faults

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/migrations"
)

const callers = 16 // of each client

// patience prevents a hang: what has to happen soon after a fault is awaited for so long.
const patience = 2 * time.Minute

// requestTime is how long a caller waits for one answer.
const requestTime = 10 * time.Second

// scene is a server under load, and what is known of it. Its methods may be used by a
// fault's do, and by goroutines of it.
type scene struct {
	fault   fault
	server  *server
	address string // the URL of the load's database, as of the start
	// pool has the test's own connections to that database, past any proxy.
	pool    *pgxpool.Pool
	clients []*client
	books   *books
	times   *times
	faults  *problems // what the callers met and must not

	loses       atomic.Bool // connections lose answers
	lostAnswers atomic.Int64
	// leaves, if set, is how long a caller waits for each answer.
	leaves  atomic.Pointer[func() time.Duration]
	over    chan struct{} // closed at the end of the load
	end     sync.Once
	working sync.WaitGroup
	serial  atomic.Int64 // of orders and idempotency keys
	program string       // in a program: its name and a hyphen
	routine int          // goroutines before the clients were made
}

// newScene makes a database on the fault's server, and clients without callers so far.
func newScene(t *testing.T, f fault) *scene {
	t.Helper()
	s := &scene{
		fault: f, books: &books{}, times: &times{}, faults: &problems{},
		over: make(chan struct{}),
	}
	if f.server == nil {
		s.server = usualServer(t)
	} else {
		s.server = f.server(t)
	}
	if s.server.way == nil {
		s.server.way = s.server.url
	}
	s.address = s.newDatabase(t)
	s.pool = testworld.Connect(t, s.address, func(config *pgxpool.Config) { config.ConnConfig.DialFunc = dial(s.server.url).Dial })
	must.Succeed(t, migrations.Up(t.Context(), s.pool))
	testworld.Exec(t, s.pool, `CREATE TABLE orders (id text, policy text NOT NULL, key text COLLATE "C", units float8 NOT NULL, PRIMARY KEY (id, key))`)
	s.distribute(t)
	over := f.over
	if over == nil {
		over = []driver{overPGX, overPGX}
	}
	s.routine = len(ourRoutines())
	for _, d := range over {
		s.clients = append(s.clients, newClient(t, d, s.address, dialer{dial(s.server.way), s}))
	}
	t.Cleanup(func() { // after a failure in the middle
		s.finish()
		s.closeClients(t)
	})
	return s
}

var databases atomic.Int64

func (s *scene) newDatabase(t *testing.T) (address string) {
	t.Helper()
	if s.server.create != nil {
		return s.server.create()
	}
	name := fmt.Sprint("faults_", databases.Add(1))
	testworld.Exec(t, testworld.Connect(t, s.server.url()), "CREATE DATABASE "+name)
	u := must.OK(url.Parse(s.server.url()))(t)
	u.Path = "/" + name
	return u.String()
}

// start starts the callers of all clients.
func (s *scene) start() {
	for _, c := range s.clients {
		for range callers {
			w := &worker{scene: s, client: c}
			s.working.Go(func() { w.run(deeds) })
		}
	}
}

// let lets the load run for a while.
func (s *scene) let(d time.Duration) { <-time.After(d) }

// finish ends the load. Callers finish what they have begun.
func (s *scene) finish() { s.end.Do(func() { close(s.over) }) }

func (s *scene) isOver() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// stop ends the load and waits for all callers.
func (s *scene) stop(t *testing.T) {
	t.Helper()
	s.finish()
	ended := make(chan struct{})
	go func() { s.working.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatalf("callers did not return within %v:\n%s", patience, strings.Join(ourRoutines(), "\n\n"))
	}
}

// callersLeave makes each caller give up its request after the time that after returns. stay
// ends that.
func (s *scene) callersLeave(after func() time.Duration) (stay func()) {
	s.leaves.Store(&after)
	return func() { s.leaves.Store(nil) }
}

// newID returns a new name for an order or an idempotency key.
func (s *scene) newID(what string) string { return fmt.Sprint(what, "-", s.program, s.serial.Add(1)) }

// activity counts the sessions of the clients in their database, and those at work. Citus
// has others.
const activity = `SELECT count(*), count(*) FILTER (WHERE state <> 'idle')
	FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND application_name NOT LIKE 'citus%' AND pid <> ALL ($1)`

// sessions returns the server's sessions of the clients, and how many of them are at work
// or in a transaction.
func (s *scene) sessions(ctx context.Context) (all, busy int, err error) {
	var own []int32
	for _, c := range s.pool.AcquireAllIdle(ctx) {
		own = append(own, int32(c.Conn().PgConn().PID()))
		c.Release()
	}
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer c.Release()
	own = append(own, int32(c.Conn().PgConn().PID()))
	err = c.QueryRow(ctx, activity, own).Scan(&all, &busy)
	return all, busy, err
}

// closeAll checks that connections and goroutines return to their number, and closes the
// clients.
func (s *scene) closeAll(t *testing.T) {
	t.Helper()
	eventually(t, "all connections are at rest", func(ctx context.Context) error {
		open, used, waiting := 0, 0, 0
		for _, c := range s.clients {
			c.drop(ctx)
			o, u := c.count()
			open, used, waiting = open+o, used+u, waiting+c.l.Waiting()
		}
		all, busy, err := s.sessions(ctx)
		return unless(err == nil && used == 0 && waiting == 0 && busy == 0 && all == open && open <= connections*len(s.clients),
			"pools: %d connections, %d in use; callers that wait: %d; the server: %d sessions, %d busy; %v", open, used, waiting, all, busy, err)
	})
	s.closeClients(t)
	eventually(t, "no session and no goroutine of the limiters is left", func(ctx context.Context) error {
		all, _, err := s.sessions(ctx)
		routines := ourRoutines()
		return unless(len(routines) <= s.routine && all == 0 && err == nil,
			"%d sessions, %v; goroutines: %d, before %d:\n%s", all, err, len(routines), s.routine, strings.Join(routines, "\n\n"))
	})
}

// closeClients closes all clients once. A pool waits for connections that are in use, for
// ever if they were leaked.
func (s *scene) closeClients(t *testing.T) {
	t.Helper()
	closed := make(chan error, 1)
	go func() {
		var err error
		for _, c := range s.clients {
			err = errors.Join(err, c.close())
		}
		closed <- err
	}()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("close: %v", err)
		}
	case <-time.After(patience):
		t.Errorf("limiters and pools did not close within %v", patience)
	}
	s.clients = nil
}

// ourRoutines returns the stacks of the goroutines that limiters and drivers have, without
// those that the test's own pools keep as long as they are open.
func ourRoutines() (stacks []string) {
	all := make([]byte, 1<<20)
	for {
		n := runtime.Stack(all, true)
		if n < len(all) {
			all = all[:n]
			break
		}
		all = make([]byte, 2*len(all))
	}
	for _, stack := range strings.Split(string(all), "\n\n") {
		if slices.ContainsFunc([]string{"pglimit/limiter", "pglimit/internal/store", "jackc/pgx", "jackc/puddle", "lib/pq", "database/sql"},
			func(part string) bool { return strings.Contains(stack, part) }) && !strings.Contains(stack, "faults.ourRoutines") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// eventually tries until try returns nil, and ends the test if that takes too long.
func eventually(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("it did not happen within %v: %s: %v", patience, what, err)
		}
	}
}

// unless returns nil if ok, and else an error.
func unless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}
