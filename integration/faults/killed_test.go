package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// clientFaults are the ends of programs, beside which the load goes on.
var clientFaults = []fault{
	{name: "kill -9 of clients in mid-batch", quick: true, do: killInBatch, check: nothingIsStuck},
	{name: "kill -9 of clients in Wait", do: killInWait, check: queuesGoOn},
}

// program is a process that uses the limiter too, with what it told about its requests.
type program struct {
	*scene
	name  string
	cmd   *osexec.Cmd
	said  testworld.Buffer // on stderr
	ended chan struct{}
	busy  chan struct{} // many requests are in flight, or a lease granted something

	mu       sync.Mutex
	inFlight map[int64]sent
	answered int
}

// many is the least number of requests in flight that are many: more than a program has connections, so
// that some share a statement.
const many = 2 * connections

func (s *scene) startProgram(t *testing.T, do task) *program {
	t.Helper()
	do.Name, do.URL = s.newID("program"), s.address
	text, err := json.Marshal(do)
	if err != nil {
		t.Fatal(err)
	}
	self := must.OK(os.Executable())(t)
	p := &program{
		scene: s, name: do.Name, cmd: osexec.Command(self),
		ended: make(chan struct{}), busy: make(chan struct{}, 1), inFlight: map[int64]sent{},
	}
	p.cmd.Env = append(os.Environ(), programEnv+"="+string(text))
	p.cmd.Stderr = &p.said
	if _, err = p.cmd.StdinPipe(); err != nil { // it ends with this process
		t.Fatal(err)
	}
	notes := must.OK(p.cmd.StdoutPipe())(t)
	must.Succeed(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.ended
	})
	go func() {
		defer close(p.ended)
		for all := json.NewDecoder(notes); ; {
			var n note
			if all.Decode(&n) != nil {
				break
			}
			p.read(n)
		}
		_ = p.cmd.Wait() // it was killed
	}()
	return p
}

// read follows what the program tells.
func (p *program) read(n note) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case n.Problem != "":
		p.faults.add("%s", n.Problem)
	case n.Admitted != nil:
		r := limiter.Result{At: n.At, Granted: n.Admitted.Units}
		if n.Lent {
			r.Source = limiter.SourceLease
			p.isBusy()
		}
		p.books.admit(n.Admitted.Policy, n.Admitted.Key, r)
	case n.Outcome == nil:
		p.inFlight[n.ID] = *n.Sent
		if len(p.inFlight) >= many {
			p.isBusy()
		}
	default:
		delete(p.inFlight, n.ID)
		var err error
		if n.Err != "" {
			err = errors.New(n.Err)
		}
		p.books.record(*n.Sent, *n.Outcome, err)
		if *n.Outcome == answered {
			p.answered++
		}
	}
}

func (p *program) isBusy() {
	select {
	case p.busy <- struct{}{}:
	default:
	}
}

var errKilled = errors.New("the program was killed")

// deaths are what the ends of programs have shown.
type deaths struct {
	kills, inFlight, most int           // most: in flight at one kill
	repeated, replayed    int           // requests with an idempotency key, and those that had counted
	noticed               time.Duration // the longest time until the server had ended the sessions
}

func (d *deaths) log(t *testing.T) {
	t.Helper()
	t.Logf("%d kills with %d requests in flight, %d of them at one; %d were repeated, of which %d had counted; the server noticed within %v",
		d.kills, d.inFlight, d.most, d.repeated, d.replayed, d.noticed.Round(time.Millisecond))
}

// kill ends the program and waits until the server has noticed. Another process sends what
// has an idempotency key again: that counts once, so it is known.
func (p *program) kill(ctx context.Context, t *testing.T, d *deaths) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatalf("%s: %v\n%s", p.name, err, &p.said)
	}
	killed := time.Now()
	<-p.ended
	if p.said.String() != "" {
		t.Fatalf("%s said:\n%s", p.name, &p.said)
	}
	eventually(t, "the server has noticed the end of "+p.name, func(context.Context) error {
		sessions := testworld.Value[string](t, p.pool, "SELECT coalesce(string_agg(concat_ws(' ', state, wait_event, query), E'\n'), '') FROM pg_stat_activity WHERE application_name = $1", p.name)
		return unless(sessions == "", "sessions: %s", sessions)
	})
	d.kills++
	d.inFlight += len(p.inFlight)
	d.most = max(d.most, len(p.inFlight))
	d.noticed = max(d.noticed, time.Since(killed))
	for _, n := range p.inFlight {
		if n.Once == "" {
			p.books.record(n, lost, errKilled)
			continue
		}
		requests := make([]limiter.Request, len(n.Parts))
		for i, what := range n.Parts {
			requests[i] = what.Policy.Request(what.Key, what.Units)
			requests[i].IdempotencyKey = n.Once
		}
		var r limiter.Result
		eventually(t, n.Once+" again", func(context.Context) (err error) { // a retry without an answer may be repeated too
			if len(requests) > 1 {
				var all limiter.Results
				if all, err = p.clients[0].l.AllowAll(ctx, requests...); err == nil {
					r = all.PerRequest[len(requests)-1]
				}
				return err
			}
			r, err = p.clients[0].l.Do(ctx, requests[0])
			return err
		})
		if !r.Allowed || r.Granted != n.Parts[len(requests)-1].Units {
			t.Errorf("%s again: %+v", n.Once, r)
		}
		p.books.record(n, answered, nil)
		d.repeated++
		if r.Replayed {
			d.replayed++
		}
	}
}

// killPrograms runs programs and kills one after another: half of them at any moment, half
// when many requests are in flight. It goes on for a while, and until they have shown enough.
func (s *scene) killPrograms(ctx context.Context, t *testing.T, do task, d *deaths, enough func() bool) {
	t.Helper()
	all := []*program{s.startProgram(t, do), s.startProgram(t, do)}
	began := time.Now()
	for time.Since(began) < testworld.Size(1200*time.Millisecond, 15*time.Second) || !enough() && time.Since(began) < patience {
		i := rand.IntN(len(all))
		p := all[i]
		eventually(t, p.name+" has got an answer", func(context.Context) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			return unless(p.answered > 0, "none; %s", &p.said)
		})
		if !do.Waits && rand.IntN(2) == 0 {
			<-p.busy // one from before is forgotten
			testworld.Receive(t, p.busy, "many requests in flight")
		} else {
			s.let(rand.N(200 * time.Millisecond))
		}
		p.kill(ctx, t, d)
		all[i] = s.startProgram(t, do)
	}
	for _, p := range all {
		p.kill(ctx, t, d)
	}
}

func killInBatch(ctx context.Context, t *testing.T, s *scene) {
	var d deaths
	s.killPrograms(ctx, t, task{}, &d, func() bool { return d.most >= many && len(s.sums(t, leftBehind)) > 0 })
	d.log(t)
	if d.most < many || d.inFlight == 0 {
		t.Errorf("at most %d requests were in flight at a kill: this says little", d.most)
	}
	s.expireReservations(ctx, t)
}

// leftBehind is what reservations of programs hold.
const leftBehind = `SELECT policy, key, sum(units) FROM pglimit_reservation WHERE policy LIKE 'kept-%' AND state = 'open' GROUP BY policy, key`

// expireReservations expects that what programs reserved and left behind counts until it
// expires, and is then given back to the first request that needs it.
func (s *scene) expireReservations(ctx context.Context, t *testing.T) {
	t.Helper()
	open := s.sums(t, leftBehind)
	counted := s.sums(t, counts)
	if len(open) == 0 {
		t.Error("no program has left a reservation behind: this says little")
	}
	for at, n := range open {
		if m := counted[at]; m < n-slack || m > n+slack {
			t.Errorf("%s of %s: %v units are reserved, and %v are counted", at.key, at.policy, n, m)
		}
	}
	for _, p := range kept {
		for i := range places {
			key := fmt.Sprint("key-", i)
			if open[place{p.Name, key}] == 0 {
				continue
			}
			expires := testworld.Value[int64](t, s.pool, `SELECT max(expires_at_us) FROM pglimit_reservation WHERE policy = $1 AND key = $2 AND state = 'open'`, p.Name, key)
			whole := p.Request(key, plenty)
			whole.IdempotencyKey = "whole" // a try without an answer may have counted
			eventually(t, fmt.Sprintf("the whole limit of %s of %s is free", key, p.Name), func(context.Context) error {
				r, err := s.clients[0].l.Do(ctx, whole)
				if r.Allowed && r.At.UnixMicro() < expires {
					t.Errorf("%s of %s was given back %v before its end", key, p.Name, time.UnixMicro(expires).Sub(r.At))
				}
				return unless(err == nil && r.Allowed, "%+v, %v", r, err)
			})
		}
	}
}

// nothingIsStuck expects that no program has left a row locked.
func nothingIsStuck(t *testing.T, s *scene) {
	for _, p := range slices.Concat(budgets, orders) {
		for i := range places {
			key := fmt.Sprint("key-", i)
			tx := must.OK(s.clients[0].begin(t.Context()))(t)
			if _, err := tx.Allow(t.Context(), p, key); err != nil {
				t.Errorf("%s of %s: %v", key, p.Name, err)
			}
			must.Succeed(t, tx.rollback(t.Context()))
		}
	}
}

func killInWait(ctx context.Context, t *testing.T, s *scene) {
	testworld.Must(t)(s.clients[0].l.Allow(ctx, standstill, "key"))
	s.books.add("Allow", standstill, "key", 1)
	var d deaths
	s.killPrograms(ctx, t, task{Waits: true}, &d, func() bool { return true })
	d.log(t)
}

// queuesGoOn expects that programs killed in Wait have left no more than their cost in
// their queue, and that turns go on where they come.
func queuesGoOn(t *testing.T, s *scene) {
	l, ctx := s.clients[0].l, t.Context()
	at := place{standstill.Name, "key"}
	a := s.books.accounts()[at]
	r := testworld.Must(t)(l.Check(ctx, standstill, at.key, 0))
	t.Logf("of the queue that stands still %v units are taken, %v of them by programs that were killed", r.Level, r.Level-a.Acknowledged)
	if r.Level > a.Acknowledged+a.Unknown+slack || r.Level < 1+waits {
		t.Errorf("%v units are taken; the programs joined for at most %v: %+v", r.Level, a.Unknown, a)
	}
	room := testworld.Must(t)(l.AllowUpTo(ctx, standstill, at.key, standstill.Burst))
	s.books.add("AllowUpTo", standstill, at.key, room.Granted)
	if full := r.Level + room.Granted; full < standstill.Burst-1-slack || full > standstill.Burst+slack {
		t.Errorf("the queue had %v units, and gave %v more of %v", r.Level, room.Granted, standstill.Burst)
	}
	p := tightQueue()
	eventually(t, "a Wait gets its turn after the kills", func(context.Context) error {
		var err error
		if r, err = l.DoWait(ctx, p.Request("key-0", 1)); r.Delay > p.Period {
			t.Errorf("the turn came only after %v: a full queue takes %v", r.Delay, p.Period)
		}
		return unless(err == nil && r.Allowed, "%+v, %v", r, err)
	})
	s.books.admit(p, "key-0", r)
}
