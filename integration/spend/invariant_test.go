package spend

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/pglimittest"
)

const spendClients = 4 // processes

// TestSpendInvariant checks that limits commit with the application's data: at every
// moment a budget counts exactly its committed orders, its open reservations and what was
// settled.
//   - 32 workers in four processes spend, roll back, reserve, settle, cancel and forget.
//   - They run for 20 seconds (a minute at full size, ten seconds with -short) and until
//     each of these has happened.
//   - The server and the processes are killed with SIGKILL every few seconds.
//
// Only the database is queried for violations, see findings. The server may run without
// fsync: its processes are killed, not the machine.
func TestSpendInvariant(t *testing.T) {
	t.Parallel()
	lasts := bed.Size(20*time.Second, time.Minute)
	if testing.Short() {
		lasts = 10 * time.Second
	}
	s := newSpendTest(t)
	began := time.Now()
	over := time.After(lasts)
	servers, clients, audits := time.NewTicker(4*time.Second), time.NewTicker(2500*time.Millisecond), time.NewTicker(250*time.Millisecond)
	late := false
	for !late || len(s.missing()) > 0 && time.Since(began) < 4*time.Minute {
		select {
		case <-over:
			late = true
		case <-servers.C:
			s.killServer()
			audit(t, s.pool, "after a crash of the server")
			servers.Reset(4 * time.Second) // valid from now on, when it is back
		case <-clients.C:
			s.killClient(rand.IntN(spendClients))
			clients.Reset(2500 * time.Millisecond)
		case <-audits.C:
			audit(t, s.pool, "under load")
			s.audits++
		}
	}
	for _, c := range s.clients {
		s.stop(c)
	}
	bed.Eventually(t, "no worker runs", func(ctx context.Context) (bool, error) {
		return bed.Value[int](t, s.pool, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL`) == 0, nil
	})
	took := time.Since(began)
	audit(t, s.pool, "at rest")
	s.askPastTheTTLs()
	audit(t, s.pool, "after the last hold has expired")
	s.deadlocks += s.countDeadlocks()
	s.tell(took)
}

// spendTest is the server, its clients and what is known of them.
type spendTest struct {
	*testing.T
	own     *pglimittest.Server
	url     string
	zone    string
	pool    *pgxpool.Pool
	clients [spendClients]*spendClient
	started int
	done    map[string]int64 // by all clients that have ended

	audits, serverKills, clientKills int
	deadlocks                        int64 // counted by servers until they were killed
	expired                          int   // given back by the requests at the end
}

func newSpendTest(t *testing.T) *spendTest {
	t.Helper()
	own, err := pglimittest.StartOwn(t.Context(), log.Printf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	})
	zone := spendZone(time.Now())
	p := newSpendPolicies(zone)
	template, err := own.Template(t.Context(), "spend", func(ctx context.Context, pool *pgxpool.Pool) error {
		if err := migrations.Up(ctx, pool); err != nil {
			return err
		}
		return newSpendTables(ctx, pool, p)
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &spendTest{T: t, own: own, url: template.New(t), zone: zone, done: map[string]int64{}}
	s.pool = bed.Connect(t, s.url, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.DialFunc = bed.NewDialer(own.URL).Dial // a container's port changes
	})
	bed.Must(t)(bed.NewLimiter(t, s.pool, nil).Allow(t.Context(), p.closed, "closed"))
	t.Cleanup(func() {
		for _, c := range s.clients {
			if c != nil {
				_ = c.cmd.Process.Kill() // it may have ended
				<-c.ended
			}
		}
	})
	for slot := range s.clients {
		s.start(slot)
	}
	return s
}

// spendClient is a client's process as seen by the test.
type spendClient struct {
	name  string
	cmd   *osexec.Cmd
	stdin io.WriteCloser
	said  bytes.Buffer  // on stderr
	ended chan struct{} // then the fields below may be read
	err   error

	last atomic.Pointer[spendReport] // may be read at any time
}

func (s *spendTest) start(slot int) {
	s.Helper()
	program, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	s.started++
	c := &spendClient{name: fmt.Sprint("client", s.started), cmd: osexec.Command(program), ended: make(chan struct{})}
	c.last.Store(new(spendReport))
	c.cmd.Env = append(os.Environ(), spenderEnv+"=1")
	c.cmd.Stderr = &c.said
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		s.Fatal(err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	go func() {
		defer close(c.ended)
		for reports := json.NewDecoder(stdout); ; {
			var r spendReport
			if reports.Decode(&r) != nil {
				break
			}
			c.last.Store(&r)
		}
		c.err = c.cmd.Wait()
	}()
	s.clients[slot] = c
	s.word(c, spendWord{URL: s.url, Server: s.own.URL(), Name: c.name, Zone: s.zone, Janitor: slot == 0})
}

func (s *spendTest) word(c *spendClient, w spendWord) {
	s.Helper()
	if err := json.NewEncoder(c.stdin).Encode(w); err != nil {
		<-c.ended
		s.Fatalf("%s has ended: %v\n%s", c.name, c.err, &c.said)
	}
}

func (s *spendTest) killServer() {
	s.Helper()
	s.deadlocks += s.countDeadlocks()
	if err := s.own.Kill(s.Context()); err != nil {
		s.Fatal(err)
	}
	if err := s.own.Restart(s.Context()); err != nil {
		s.Fatal(err)
	}
	s.serverKills++
	s.pool.Reset()
	for _, c := range s.clients {
		s.word(c, spendWord{Server: s.own.URL()})
	}
}

func (s *spendTest) killClient(slot int) {
	s.Helper()
	c := s.clients[slot]
	if err := c.cmd.Process.Kill(); err != nil {
		s.Fatalf("%s: %v", c.name, err)
	}
	<-c.ended
	s.clientKills++
	s.take(c)
	s.start(slot)
}

// stop lets a client finish what it has begun.
func (s *spendTest) stop(c *spendClient) {
	s.Helper()
	_ = c.stdin.Close() // if that fails it has ended
	<-c.ended
	if c.err != nil || !c.last.Load().Ended {
		s.Errorf("%s: %v\n%s", c.name, c.err, &c.said)
	}
	s.take(c)
}

// take adds up a client's reports until it ends.
func (s *spendTest) take(c *spendClient) {
	s.Helper()
	for what, n := range c.last.Load().Done {
		s.done[what] += n
	}
	for _, f := range c.last.Load().Faults {
		s.Error(f)
	}
}

// countDeadlocks reads a counter that the server forgets in a crash.
func (s *spendTest) countDeadlocks() int64 {
	s.Helper()
	return bed.Value[int64](s, s.pool, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
}

// askPastTheTTLs waits until all reservations have expired while no worker runs. Then one
// denied request gives back all reservations of its budget, a hundred at a time.
func (s *spendTest) askPastTheTTLs() {
	s.Helper()
	bed.Eventually(s, "the last hold has expired", func(context.Context) (bool, error) {
		return bed.Value[bool](s, s.pool, `SELECT coalesce(max(expires_at_us), 0) <= extract(epoch FROM clock_timestamp()) * 1000000
			FROM pglimit_reservation WHERE state = 'open'`), nil
	})
	const open = "SELECT count(*) FROM pglimit_reservation WHERE state = 'open'"
	s.expired = bed.Value[int](s, s.pool, open)
	l, p := bed.NewLimiter(s, s.pool, nil), newSpendPolicies(s.zone)
	for _, p := range []limiter.Policy{p.month, p.bucket} {
		for i := range spendAccounts {
			key := fmt.Sprint("a", i)
			for range 1 + bed.Value[int](s, s.pool, open+" AND policy = $1 AND key = $2", p.Name, key)/100 {
				bed.Must(s)(l.Check(s.Context(), p, key, accountBudget))
			}
		}
	}
	if n := bed.Value[int](s, s.pool, open); n > 0 {
		s.Errorf("%d reservations have outlived their TTL though all budgets were requested", n)
	}
}

// missing lists what has not happened so far.
func (s *spendTest) missing() (all []string) {
	for _, what := range []string{
		"committed", "rolled back by choice", "rolled back by an error", "ended by a context", "unknown outcomes", "denied", "denied by the tenant",
		"requested together", "requested a full budget", "sent again", "orders sent again", "replayed", "holds", "holds in transactions", "settled below", "settled at", "settled above", "settled late",
		"settled in transactions", "cancelled", "cancelled in transactions", "abandoned", "returned orders", "returned settlements", "looked back",
	} {
		n := s.done[what]
		for _, c := range s.clients {
			n += c.last.Load().Done[what]
		}
		if n == 0 {
			all = append(all, what)
		}
	}
	if bed.Value[int](s, s.pool, "SELECT count(*) FROM overdrafts") == 0 {
		all = append(all, "settled beyond the budget")
	}
	return all
}

// tell logs the figures, and fails if too little happened to prove anything.
func (s *spendTest) tell(took time.Duration) {
	s.Helper()
	logBalance(s, s.pool)
	s.Logf("%.0f s on %v: %d kills of the server, %d of clients; %d audits under load",
		took.Seconds(), s.own, s.serverKills, s.clientKills, s.audits)
	var figures []string
	for _, what := range slices.Sorted(maps.Keys(s.done)) {
		figures = append(figures, fmt.Sprintf("%s %d", what, s.done[what]))
	}
	s.Logf("clients: %s", strings.Join(figures, ", "))
	ends := map[string]int64{}
	for _, state := range []string{"settled", "cancelled", "expired"} {
		ends[state] = bed.Value[int64](s, s.pool, "SELECT count(*) FROM ended WHERE state = $1", state)
	}
	overdrafts := bed.Value[int64](s, s.pool, "SELECT count(*) FROM overdrafts")
	s.Logf("holds: %d, of which settled %d, cancelled %d, expired %d, %d of them given back at the end; %d settled beyond the budget",
		bed.Value[int64](s, s.pool, "SELECT count(*) FROM pglimit_reservation WHERE state <> 'spent'"), ends["settled"], ends["cancelled"], ends["expired"], s.expired, overdrafts)
	if n := s.deadlocks + s.done["deadlocks"]; n > 0 {
		s.Errorf("%d deadlocks counted by the server, %d met by clients", s.deadlocks, s.done["deadlocks"])
	}
	for _, what := range s.missing() {
		s.Errorf("nothing was %s: this says little", what)
	}
	if s.serverKills == 0 || s.clientKills == 0 || overdrafts == 0 || ends["expired"] == 0 {
		s.Error("the kills, expired holds or overdrafts are missing: this says little")
	}
}
