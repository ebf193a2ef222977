package contest

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	maxChecked = 100 // keys of reservations, and sets, whose counts are read at the end
	tolerance  = 0.5 // units that may have leaked; all costs are whole
	// agreeWithin is the time for requests in flight of disconnected clients, after which
	// the keys of a set must agree.
	agreeWithin = 2 * time.Second
	agreeEvery  = 20 * time.Millisecond
)

// counted is keys to check: one of reservations, or a set.
type counted struct {
	keys    []subject
	tallies []*tally
}

// checkCounted compares what the database counts for some keys of AllowAll and of Reserve
// with what their clients were answered. It begins when no worker sends any more.
func (c *Contest) checkCounted(ctx context.Context) error {
	var first error
	var failed sync.Once
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	until := time.Now().Add(agreeWithin)
	work := make(chan counted)
	var wg sync.WaitGroup
	for _, to := range c.clients {
		wg.Go(func() {
			for one := range work {
				if err := c.check(ctx, to, one, until); err != nil {
					failed.Do(func() { first = err; stop() })
				}
			}
		})
	}
	for _, one := range c.toCheck() {
		work <- one
	}
	close(work)
	wg.Wait()
	return first
}

// toCheck chooses the keys to check.
func (c *Contest) toCheck() (all []counted) {
	sets, reserved := map[string]*counted{}, 0
	for s, t := range c.tallies {
		switch {
		case s.kind == reservedKind && reserved < maxChecked:
			reserved++
			all = append(all, counted{[]subject{s}, []*tally{t}})
		case t.set != "":
			set := sets[t.set]
			if set == nil {
				set = &counted{}
				sets[t.set] = set
			}
			set.keys, set.tallies = append(set.keys, s), append(set.tallies, t)
		}
	}
	for _, set := range sets {
		if len(all) < reserved+maxChecked {
			all = append(all, *set)
		}
	}
	return all
}

// check reads the counts of keys, and records what is wrong. Keys of a set have until then
// to agree.
func (c *Contest) check(ctx context.Context, to Client, one counted, until time.Time) error {
	levels := make([]float64, len(one.keys))
	for {
		for i, s := range one.keys {
			level, err := level(ctx, to, one.tallies[i], s)
			if err != nil {
				return err
			}
			levels[i] = level
		}
		if one.agree(levels) || time.Now().After(until) {
			break
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(agreeEvery):
		}
	}
	for i, t := range one.tallies {
		least, most := t.admitted, t.admitted+t.unknown
		if l := c.ledgers[one.keys[i]]; l != nil {
			least, most = l.low, l.high
		}
		if levels[i] < float64(least)-tolerance || levels[i] > float64(most)+tolerance {
			t.wrong("%.2f units are counted instead of %d to %d", levels[i], least, most)
		}
		if t.alike && !one.agree(levels) {
			t.wrong("%.2f units are counted, but the keys that were always requested with it have another count", levels[i])
		}
	}
	return nil
}

// agree reports whether the keys that are only requested together have the same level.
func (one counted) agree(levels []float64) bool {
	of := -1
	for i, t := range one.tallies {
		switch {
		case !t.alike:
		case of < 0:
			of = i
		case levels[i] < levels[of]-tolerance || levels[i] > levels[of]+tolerance:
			return false
		}
	}
	return true
}

// level returns the units counted for a key.
func level(ctx context.Context, to Client, t *tally, s subject) (float64, error) {
	for failures := 1; ; failures++ {
		u, err := to.Usage(ctx, t.plans[0], s.key)
		if err == nil {
			return u.Result.Level, nil
		}
		if failures >= maxFailures || fateOf(err) == hopeless || ctx.Err() != nil {
			return 0, fmt.Errorf("read a key's usage: %w", err)
		}
	}
}
