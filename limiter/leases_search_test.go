package limiter_test

import (
	"context"
	"iter"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/memory"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// TestLeasesAdmitNoMoreThanTheBound: random histories over rows that two processes take
// leases from. Between a call's clock reading, its statement and its answer a process may be
// stopped, or be killed, and their clocks run at different rates and jump.
func TestLeasesAdmitNoMoreThanTheBound(t *testing.T) {
	t.Parallel()
	d := search.Draw{Leases: true, Coarse: true, Forward: true, Keys: 1, Names: 1, Steps: 60, Operations: leasedOperations}
	for _, base := range search.Bases() {
		if base.Algorithm == limiter.LeakyBucketQueue || base.Algorithm == limiter.SlidingWindowLog {
			continue
		}
		t.Run(search.Name(base), func(t *testing.T) {
			t.Parallel()
			d, lent := d, 0
			d.Base = base
			search.Search(t, d, search.Histories(150), func(h *search.History) search.Subject {
				return newProcesses(&lent).Subject
			})
			t.Logf("%d units granted from leases", lent)
			if lent < 150 {
				t.Error("that proves little")
			}
		})
	}
}

// leasedOperations are mostly those that a lease grants. Left out are Block and Reset, which
// reach other processes later, Refund, which takes back lent units as if they were used, and
// Settle, which may count more than the limit.
const leasedOperations = "allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow" +
	" upto check charge once all reserve cancel usage undo undo undo override"

// processes are limiters over the same rows that take leases.
type processes struct {
	search.Subject
	rows     *memory.Store
	policies *policies.Policies
	all      [2]*process
	rand     *rand.Rand // of a step
	lent     *int
}

// process is one of them. What it does in the background runs between two steps.
type process struct {
	*processes
	rate    float64 // of its clocks
	asleep  float64 // nanoseconds for which the machine was suspended, which its steady clock missed
	jumped  int64   // of its wall clock, in nanoseconds
	decided bool    // in this step by a row: it is not stopped after that
	tasks   []*task
	running *task
	timers  []timer
}

// task is something in the background, which may be stopped before and after its statement.
type task struct {
	next func() (struct{}, bool)
	stop func(struct{}) bool
}

type timer struct {
	at int64 // by the steady clock
	f  func()
}

func newProcesses(lent *int) *processes {
	live, err := policies.New()
	if err != nil {
		panic(err)
	}
	s := &processes{rows: memory.New(), policies: live, lent: lent, rand: rand.New(rand.NewPCG(1, 1))}
	s.Clock, s.Apply, s.Before = new(conformance.Clock), search.Applied(live), s.before
	s.Ways = make([]search.Way, len(s.all))
	for i := range s.all {
		s.start(i, []float64{0.9995, 1.0005}[i])
	}
	return s
}

// start begins a process in the place of another one.
func (s *processes) start(i int, rate float64) {
	p := &process{processes: s, rate: rate}
	s.all[i] = p
	l := limiter.NewLeasing(s.rows, &limiter.Config{
		Now: s.Clock.Now, DisableTimeout: true, IdempotencyTTL: search.Remember, Policies: s.policies,
		Observe: func(_ context.Context, o limiter.Observation) {
			if o.Result.Source == limiter.SourceLease && o.Verb == limiter.VerbAllow {
				*s.lent += int(o.Result.Granted)
			}
		},
	}, limiter.Process{
		Clock: p.clock, Start: p.begin, Least: 1, Share: 2,
		After: func(d time.Duration, f func()) {
			steady, _ := p.time()
			p.timers = append(p.timers, timer{steady + int64(d), f})
		},
		Store: func(inner store.Store) store.Store { return between{inner, p} },
	})
	s.Ways[i] = search.By(l)[0]
}

// time returns the process's clocks.
func (p *process) time() (steady, wall int64) {
	now := float64(p.Clock.Now().Sub(conformance.Epoch))
	return int64((now - p.asleep) * p.rate), int64(now*p.rate) + p.jumped
}

// clock is time for leases: the process may have been stopped until it is called.
func (p *process) clock() (steady, wall int64) {
	if !p.decided && p.running == nil && p.rand.IntN(8) == 0 {
		p.sleep()
	}
	return p.time()
}

// sleep stops the process for a while, or suspends its machine.
func (p *process) sleep() {
	us, long := p.Clock.Now().Sub(conformance.Epoch).Microseconds(), p.rand.Int64N(6_000_000)
	if p.Clock.Set(us + long); p.rand.IntN(2) == 0 {
		p.asleep += float64(long * 1000)
	}
}

// begin starts a task.
func (p *process) begin(f func()) {
	t := new(task)
	t.next, _ = iter.Pull(func(yield func(struct{}) bool) {
		t.stop = yield
		f()
	})
	p.tasks = append(p.tasks, t)
}

// between stops tasks before and after their statements.
type between struct {
	store.Store
	p *process
}

func (b between) Do(ctx context.Context, op *store.Op) error {
	t := b.p.running
	if b.p.decided = true; t != nil {
		t.stop(struct{}{})
	}
	err := b.Store.Do(ctx, op)
	if t != nil {
		t.stop(struct{}{})
	}
	return err
}

// before lets the processes do what they do by themselves.
func (s *processes) before(step *search.Step) {
	s.rand = rand.New(rand.NewPCG(uint64(step.Number), 7))
	for i, p := range s.all {
		switch s.rand.IntN(40) {
		case 0: // it is killed, and started again
			s.start(i, p.rate)
			continue
		case 1:
			p.jumped += (s.rand.Int64N(20) - 10) * int64(time.Second)
		}
		if p.decided = true; s.rand.IntN(4) > 0 {
			p.proceed()
		}
		p.decided = false
	}
}

// proceed runs the timers that are due, and tasks for a while.
func (p *process) proceed() {
	timers := p.timers
	p.timers = nil
	for _, t := range timers {
		if steady, _ := p.time(); t.at <= steady {
			t.f()
		} else {
			p.timers = append(p.timers, t)
		}
	}
	tasks := p.tasks
	p.tasks = nil
	for _, t := range tasks {
		p.running = t
		_, more := t.next()
		for more && p.rand.IntN(6) > 0 {
			_, more = t.next()
		}
		if p.running = nil; more {
			p.tasks = append(p.tasks, t)
		}
	}
}
