package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/servers"
)

// The load that is measured.
const (
	rate         = 1000 // requests per second for one key
	surgeTimes   = 15   // as many in the surge
	surgeCallers = 512  // of the key that surges: so many that it is no closed load
	otherKeys    = 1000
	otherRate    = 1000 // requests per second for the other keys together
	otherCallers = 50
)

// hotKey sorts between the other keys.
const hotKey = "user:000500:hot"

// begin is how far ahead loads are set to begin, so that all are ready.
const begin = 10 * time.Millisecond

// steady is one key with a steady rate, for one number of callers. Samples are by contender
// and round.
type steady struct {
	Callers    int
	contenders []contender
	Samples    [][]measure.OpenSample
}

func steadyCells() (list []*steady) {
	for _, callers := range []int{20, 50} {
		c := &steady{Callers: callers, contenders: []contender{naive, durable, relaxed}}
		c.Samples = make([][]measure.OpenSample, len(c.contenders))
		list = append(list, c)
	}
	return list
}

// measure measures the i-th contender once.
func (c *steady) measure(ctx context.Context, d decider, p plan, i int) error {
	s, err := measure.RunOpen(ctx, measure.OpenLoad{
		Begin: time.Now().Add(begin), Stages: []measure.Stage{{PerSecond: rate, Length: p.Warmup}, {PerSecond: rate, Length: p.Length}},
		Callers: c.Callers, Keys: []string{hotKey}, Sequence: []uint32{0}, Decide: d.decide,
	})
	if err != nil {
		return err
	}
	c.Samples[i] = append(c.Samples[i], s[1])
	return count(ctx, d, []string{hotKey}, requests(s))
}

// surge is one key whose rate rises while others are used steadily. Samples are by
// contender and round.
type surge struct {
	contenders []contender
	Samples    [][]surgeSample
}

// surgeSample is one round: the other keys and the one that surges, before and meanwhile.
type surgeSample struct{ OthersBefore, Others, HotBefore, Hot measure.OpenSample }

func newSurge() *surge {
	c := &surge{contenders: []contender{durable, relaxed}}
	c.Samples = make([][]surgeSample, len(c.contenders))
	return c
}

// measure measures the i-th contender once.
func (c *surge) measure(ctx context.Context, d decider, p plan, i int) error {
	start := time.Now().Add(begin)
	load := func(callers int, keys []string, before, during float64) measure.OpenLoad {
		return measure.OpenLoad{
			Begin: start, Stages: []measure.Stage{{PerSecond: before, Length: p.Warmup}, {PerSecond: before, Length: p.Length}, {PerSecond: during, Length: p.Length}},
			Callers: callers, Keys: keys, Sequence: measure.Evenly(len(keys)), Decide: d.decide,
		}
	}
	others := measure.Keys(otherKeys)
	loads := []measure.OpenLoad{load(otherCallers, others, otherRate, otherRate), load(surgeCallers, []string{hotKey}, rate, surgeTimes*rate)}
	samples := make([][]measure.OpenSample, len(loads))
	group, both := errgroup.WithContext(ctx)
	for n, l := range loads {
		group.Go(func() (err error) {
			samples[n], err = measure.RunOpen(both, l)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	o, h := samples[0], samples[1]
	c.Samples[i] = append(c.Samples[i], surgeSample{OthersBefore: o[1], Others: o[2], HotBefore: h[1], Hot: h[2]})
	if err := count(ctx, d, others, requests(o)); err != nil {
		return err
	}
	return count(ctx, d, []string{hotKey}, requests(h))
}

// requests returns how many were answered in all stages.
func requests(samples []measure.OpenSample) (n int64) {
	for _, s := range samples {
		n += s.Requests
	}
	return n
}

// rounds numbers policies, so that no measurement sees another's rows.
var rounds int

// eachRound measures contenders in turn in each round, every other round backwards.
func eachRound(ctx context.Context, server *servers.Postgres, p plan, contenders []contender, measure func(ctx context.Context, d decider, p plan, i int) error) error {
	for round := range p.Rounds {
		for turn := range contenders {
			i := turn
			if round%2 == 1 {
				i = len(contenders) - 1 - turn
			}
			c := contenders[i]
			rounds++
			fmt.Fprintf(os.Stderr, "load: measurement %d, round %d of %d: %s\n", rounds, round+1, p.Rounds, c.ID)
			d, err := c.open(server.Pool, fmt.Sprintf("load-%d", rounds))
			if err != nil {
				return fmt.Errorf("%s: %w", c.ID, err)
			}
			if err := measure(ctx, d, p, i); err != nil {
				return fmt.Errorf("%s: %w", c.ID, err)
			}
		}
	}
	return nil
}

// figures returns one figure of every round.
func figures[S any](samples []S, figure func(S) float64) (list []float64) {
	for _, s := range samples {
		list = append(list, figure(s))
	}
	slices.Sort(list)
	return list
}
