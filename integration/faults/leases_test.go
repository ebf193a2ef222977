package faults

import (
	"context"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// leaseFaults end and stop programs that hold units of one key.
var leaseFaults = []fault{
	{name: "programs killed and stopped while they hold leases", quick: true, do: stopLessees},
}

const leaseLife = 250 * time.Millisecond

// leased are policies that programs hold leases of. A block is up to a sixteenth of what is
// left, and so more than a bucket sets apart for those that are granted late. The windows are
// those of the clock, as in tight. A commit waits for no disk: on a busy one a block would come
// late, and all be granted by rows. No fault here ends the server.
var leased = slices.DeleteFunc(everyAlgorithm("leased", func(p *limiter.Policy) {
	p.Limit, p.Period, p.Lease, p.Durability = 600, time.Second, leaseLife.Seconds(), limiter.Relaxed
	if p.Aligned = p.Algorithm == limiter.FixedWindow; p.Algorithm == limiter.TokenBucket {
		p.Burst, p.Lease = 6000, leaseLife.Seconds()/10
	}
}), func(p limiter.Policy) bool {
	return !slices.Contains([]limiter.Algorithm{limiter.TokenBucket, limiter.FixedWindow, limiter.SlidingWindowCounter}, p.Algorithm)
})

// lease requests units of a leased limit. After a denial it rests until much is left again.
//
// A program that is stopped tells of its grants when it goes on, which is too late to count.
// The moment of a grant lies between the clock reading before the call and the answer. It is not
// before Result.At, which a lease counts from the row's own time on, less the time that the
// statement took. So the later of reading and Result.At is when it was at the earliest. The unit
// was counted at most a life before the grant, and not after Result.At: so the bound holds for
// that moment too, exactly, as the programs and the server have one clock.
func (w *worker) lease() {
	p := leased[rand.IntN(len(leased))]
	began := time.Now()
	var r limiter.Result
	o, _ := w.ask("Allow of a leased limit", func(ctx context.Context) (err error) {
		r, err = w.l.AllowN(ctx, p, "hot", float64(1+rand.IntN(2)))
		return err
	})
	switch {
	case o != answered:
	case !r.Allowed:
		w.let(2 * leaseLife)
	default:
		if began.After(r.At) {
			r.At = began
		}
		w.books.admit(p, "hot", r)
		w.let(rand.N(10 * pause)) // else a block is used up before the next one comes
	}
}

// stopLessees kills programs and stops others, right after a lease of theirs granted something.
func stopLessees(ctx context.Context, t *testing.T, s *scene) {
	var d deaths
	all := make([]*program, 3)
	for i := range all {
		all[i] = s.startProgram(t, task{Leases: true})
	}
	began, stops := time.Now(), 0
	least := testworld.Size(time.Second, 15*time.Second)
	for i := 0; stops < 3 || time.Since(began) < least || !s.books.lentEnough() && time.Since(began) < patience; i++ {
		p := all[i%len(all)]
		for range 2 { // one from before is forgotten
			testworld.Receive(t, p.busy, "a grant from a lease of "+p.name)
		}
		if i%2 == 1 {
			p.kill(ctx, t, &d)
			all[i%len(all)] = s.startProgram(t, task{Leases: true})
			continue
		}
		p.signal(t, syscall.SIGSTOP)
		s.nextSecond() // the others use all of the next window
		s.let(2 * leaseLife)
		p.signal(t, syscall.SIGCONT)
		s.nextSecond() // no other fault has lost units of this window
		stops++
	}
	for _, p := range all {
		p.kill(ctx, t, &d)
	}
	t.Logf("%d kills and %d stops; %v of %v units were granted from leases", d.kills, stops, s.books.lent, s.books.ofLeased)
	if !s.books.lentEnough() {
		t.Error("leases granted too little: this says little")
	}
}

// lentEnough reports whether leases granted thousands of units, and a tenth of all that were
// admitted. It is no more: on a busy machine a lease ends before most of it is asked for.
func (b *books) lentEnough() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lent > 2000 && b.lent > b.ofLeased/10
}

// nextSecond lets the load run until the next windows begin.
func (s *scene) nextSecond() { s.let(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) }

func (p *program) signal(t *testing.T, what syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(what); err != nil {
		t.Fatalf("%s: %v\n%s", p.name, err, &p.said)
	}
}
