package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/localpg"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// serverClock is the clock of a server that runs under libfaketime.
type serverClock struct{ file string }

// faketime returns libfaketime's path.
func faketime(t *testing.T) string {
	t.Helper()
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 { // fails only on a bad pattern
			return found[0]
		}
	}
	t.Fatal("libfaketime is missing, which moves the server's clock: run scripts/setup faults, which installs it or says how")
	return ""
}

// startClocked starts a server whose clock can be set.
func startClocked(t *testing.T) (*localpg.Server, *serverClock) {
	t.Helper()
	c := &serverClock{filepath.Join(openDir(t), "clock")}
	c.set(t, 0)
	return startServer(t, localpg.Options{Settings: roomy, BinDir: programs(t, []string{
		"LD_PRELOAD=" + faketime(t), "FAKETIME_TIMESTAMP_FILE=" + c.file,
		// Reading the file is not safe in the handler of a signal, and the server reads the
		// clock there: a server that read the file each time crashed. This reads it once a
		// second.
		"FAKETIME_CACHE_DURATION=0",
		"FAKETIME_DONT_FAKE_MONOTONIC=1", // as where a clock is set
		"FAKETIME_DISABLE_SHM=1",         // leaves nothing in /dev/shm
	})}), c
}

// noticed is the time in which each process of the server notices that its clock was set.
// Until then the clocks of two sessions can differ.
const noticed = 1500 * time.Millisecond

// set sets the server's clock that far ahead of the true time, and returns when all its
// processes have noticed that.
func (c *serverClock) set(t *testing.T, ahead time.Duration) {
	t.Helper()
	// A reader must not see half a line.
	must.Succeed(t, os.WriteFile(c.file+".new", fmt.Appendf(nil, "%+f\n", ahead.Seconds()), 0o644))
	must.Succeed(t, os.Rename(c.file+".new", c.file))
	<-time.After(noticed)
}

// clockFaults set the server's clock under the load. A key's time never moves back: after a
// clock was set back the key leaks nothing until the clock has caught up. After it was set
// ahead the key leaks what that clock says.
var clockFaults = []fault{
	setClock("clock set back by 10 s", -10*time.Second),
	setClock("clock set back by an hour", -time.Hour),
	setClock("clock set ahead by an hour", time.Hour),
	clockFault("clock set back and forth", backAndForth),
}

// clockFault is a fault of a server whose clock do sets. Meanwhile the time of no row may
// move back.
func clockFault(name string, do func(ctx context.Context, t *testing.T, s *scene, clock *serverClock)) fault {
	var clock *serverClock
	return fault{
		name: name,
		server: func(t *testing.T) *server {
			var own *localpg.Server
			own, clock = startClocked(t)
			return serverOf(own)
		},
		do: func(ctx context.Context, t *testing.T, s *scene) {
			stop := s.watchTimes(t)
			do(ctx, t, s, clock)
			if looks := stop(); looks < 10 {
				t.Errorf("the rows' times were read only %d times", looks)
			}
		},
	}
}

// probed are limits of 10 units in 2 seconds.
var probed = everyAlgorithm("probed", func(p *limiter.Policy) { p.Limit, p.Period = 10, 2*time.Second })

// beyond is longer than a unit counts under any policy of probed.
const beyond = 4500 * time.Millisecond

// probe asks for what is left of a key, of each algorithm, and expects some or none. What it
// gets is judged as the load's admissions are.
func (s *scene) probe(ctx context.Context, t *testing.T, key, when string, some bool) {
	t.Helper()
	for _, p := range probed {
		r, err := s.clients[0].l.AllowUpTo(ctx, p, key, 10)
		if err != nil {
			t.Errorf("%s, %s of %s: %v", when, key, p.Name, err)
			continue
		}
		if r.Granted > 0 != some || !some && (r.RetryAfter <= 0 || r.RetryAfter > 2*p.Period) {
			t.Errorf("%s, %s of %s was granted %v units, want some: %v: %+v", when, key, p.Name, r.Granted, some, r)
		}
		if r.Granted > 0 {
			s.books.admit(p, key, r)
		}
	}
}

// setClock sets the clock for a while and back to the true time.
func setClock(name string, ahead time.Duration) fault {
	return clockFault(name, func(ctx context.Context, t *testing.T, s *scene, clock *serverClock) {
		s.probe(ctx, t, "before", "before the clock is set", true)
		clock.set(t, ahead)
		s.probe(ctx, t, "meanwhile", "on a clock that is wrong", true)
		s.let(beyond)
		s.probe(ctx, t, "before", "on a clock that is wrong", ahead > 0)
		s.probe(ctx, t, "meanwhile", "some time later", true)
		clock.set(t, 0)
		s.probe(ctx, t, "new", "on the right clock", true)
		s.let(beyond)
		s.probe(ctx, t, "new", "on the right clock, some time later", true)
		if ahead < 0 {
			s.probe(ctx, t, "before", "on the right clock", true)
			s.probe(ctx, t, "meanwhile", "on the right clock", true)
			return
		}
		// These keys are an hour ahead. They leak nothing until the clock is there too, or
		// until they are reset.
		s.probe(ctx, t, "before", "before the clock has caught up", false)
		s.probe(ctx, t, "meanwhile", "before the clock has caught up", false)
		for _, p := range probed {
			if err := s.clients[0].l.Reset(ctx, p, "meanwhile"); err != nil {
				t.Error(err)
			}
			if r, err := s.clients[0].l.AllowUpTo(ctx, p, "meanwhile", 10); err != nil || r.Granted != 10 {
				t.Errorf("after a Reset: %+v, %v", r, err)
			}
		}
		clock.set(t, ahead+2*beyond) // as after an hour
		s.probe(ctx, t, "before", "when the clock has caught up", true)
		clock.set(t, 0)
	})
}

// backAndForth sets the clock many times.
func backAndForth(ctx context.Context, t *testing.T, s *scene, clock *serverClock) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	s.probe(ctx, t, "before", "before the clock is set", true)
	for range 12 {
		clock.set(t, []time.Duration{-time.Hour, -10 * time.Second, 0, 10 * time.Second, time.Hour}[draw.IntN(5)])
		s.let(time.Duration(draw.Int64N(int64(time.Second))))
	}
	clock.set(t, time.Hour+2*beyond) // later than ever: all keys leak again
	s.probe(ctx, t, "before", "when the clock has caught up", true)
	s.let(beyond)
	s.probe(ctx, t, "before", "some time later", true)
	clock.set(t, 0)
	s.probe(ctx, t, "new", "on the right clock", true)
}

// watchTimes reads the time of each row of the load and of the probes over and over, and
// reports those that move back, until the function that it returns is called. That returns
// how often it has read them.
func (s *scene) watchTimes(t *testing.T) (stop func() (looks int)) {
	t.Helper()
	var texts []string
	for _, a := range algorithm.Tables {
		texts = append(texts, "SELECT policy, key, updated_at_us FROM pglimit_"+string(a)+" WHERE key <> 'meanwhile'") // which is reset
	}
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	var ends sync.WaitGroup
	ends.Go(func() {
		latest := map[place]int64{}
		for ; ctx.Err() == nil; looks++ {
			rows, err := s.pool.Query(context.WithoutCancel(ctx), strings.Join(texts, " UNION ALL "))
			var at place
			var us int64
			if err == nil {
				_, err = pgx.ForEachRow(rows, []any{&at.policy, &at.key, &us}, func() error {
					if us < latest[at] {
						t.Errorf("the time of %s of %s went back by %d µs", at.key, at.policy, latest[at]-us)
					}
					latest[at] = us
					return nil
				})
			}
			if err != nil {
				t.Errorf("read the rows' times: %v", err)
				return
			}
			s.let(20 * time.Millisecond)
		}
	})
	return func() int { cancel(); ends.Wait(); return looks }
}
