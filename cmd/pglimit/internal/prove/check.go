package prove

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/conformance/verbs"
)

const (
	maxChecked = 100 // sets whose counts are read at the end
	tolerance  = 0.5 // units that may have leaked; all costs are whole
	// agreeWithin is the time for requests in flight of disconnected clients, after which
	// the keys of a set must agree.
	agreeWithin = 2 * time.Second
	agreeEvery  = 20 * time.Millisecond
)

// check compares what the database counts for the keys of some sets with what their clients
// were answered. It begins when no worker sends any more.
func (c *contest) check(ctx context.Context) error {
	sets := map[string][]string{}
	for key, of := range c.accounts {
		if of.set != "" && (sets[of.set] != nil || len(sets) < maxChecked) {
			sets[of.set] = append(sets[of.set], key)
		}
	}
	until, n := time.Now().Add(agreeWithin), 0
	for _, keys := range sets {
		if err := c.checkSet(ctx, c.clients[n%len(c.clients)], keys, until); err != nil {
			return err
		}
		n++
	}
	return nil
}

// checkSet reads the counts of the keys of a set, and records what is wrong. They have until
// then to agree.
func (c *contest) checkSet(ctx context.Context, to client, keys []string, until time.Time) error {
	levels := make([]float64, len(keys))
	for {
		for i, key := range keys {
			level, err := c.level(ctx, to, key)
			if err != nil {
				return err
			}
			levels[i] = level
		}
		if slices.Max(levels)-slices.Min(levels) <= tolerance {
			break
		}
		if time.Now().After(until) {
			for i, key := range keys {
				c.accounts[key].wrong("%.2f units are counted, but the keys that were always requested with it have another count", levels[i])
			}
			break
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(agreeEvery):
		}
	}
	for i, key := range keys {
		if _, _, err := c.accounts[key].Judge(levels[i], tolerance); err != nil {
			c.accounts[key].wrong("%v", err)
		}
	}
	return nil
}

// level returns the units counted for a key.
func (c *contest) level(ctx context.Context, to client, key string) (float64, error) {
	usage := verbs.Call{Op: "usage", Request: c.accounts[key].bounding()[0].Request(key, 0)}
	for failures := 1; ; failures++ {
		a := usage.Make(ctx, to)
		if a.Err == nil {
			return a.Usage.Result.Level, nil
		}
		if failures >= maxFailures || fateOf(a.Err) == hopeless || ctx.Err() != nil {
			return 0, fmt.Errorf("read a key's usage: %w", a.Err)
		}
	}
}
