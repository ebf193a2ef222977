package limiter

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/policies"
	"github.com/pglimit/pglimit/internal/store"
)

// Times between two looks for changes.
const (
	defaultPollEvery = 500 * time.Millisecond
	minPollEvery     = 10 * time.Millisecond
	notifiedEvery    = time.Minute // while notifications arrive
)

// newPolicies returns Policies without a store.
func newPolicies(config *PoliciesConfig) (*Policies, error) {
	p := &Policies{now: time.Now}
	if config != nil {
		p.config = *config
	}
	c := &p.config
	orDefault(&c.PollEvery, defaultPollEvery)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch n := len(c.KeySecret); {
	case c.PollEvery < minPollEvery:
		return nil, store.Invalid("PoliciesConfig.PollEvery", c.PollEvery.String(), "must be at least "+minPollEvery.String())
	case c.KeySecret != nil && n < keys.MinSecret:
		return nil, store.Invalid("PoliciesConfig.KeySecret", fmt.Sprintf("of %d bytes", n),
			fmt.Sprintf("must have at least %d bytes; use that of Config.KeySecret, or nil", keys.MinSecret))
	}
	c.KeySecret = bytes.Clone(c.KeySecret)
	p.state.Store(&policyState{})
	return p, nil
}

// follower returns one that polls.
func (p *Policies) follower(s policies.Store) *policies.Follower {
	return &policies.Follower{
		Every: p.config.PollEvery, Net: max(notifiedEvery, p.config.PollEvery),
		Version: s.Version, Look: p.look, Failed: p.failed,
	}
}

// open loads, unless Background is set, and follows changes.
func (p *Policies) open(ctx context.Context, f *policies.Follower) (*Policies, error) {
	p.ofDatabase = true
	if !p.config.Background {
		if err := p.load(ctx); err != nil {
			return nil, err
		}
		p.loaded.Store(true)
	}
	following, stop := context.WithCancel(context.Background())
	p.stop, p.ended = stop, make(chan struct{})
	go func() {
		defer close(p.ended)
		f.Run(following)
	}()
	return p, nil
}

// look loads if version returns another version than the loaded one. One that is lower is
// that of a database that was restored.
func (p *Policies) look(ctx context.Context, version func(context.Context) (int64, error)) error {
	v, err := version(ctx)
	if err != nil || v == p.Version() && p.loaded.Load() {
		return err
	}
	if err := p.load(ctx); err != nil {
		return err
	}
	p.loaded.Store(true)
	return nil
}

// failed logs at most one warning a minute.
func (p *Policies) failed(ctx context.Context, err error) {
	if p.failing.next(time.Minute) {
		p.config.Logger.WarnContext(ctx, "pglimit: the policies in the database cannot be read; those last known stay",
			"version", p.Version(), "error", err)
	}
}

// throttle lets one event pass in a while.
type throttle struct{ after atomic.Int64 } // Unix microseconds

func (t *throttle) next(every time.Duration) bool {
	now, after := time.Now(), t.after.Load()
	return now.UnixMicro() >= after && t.after.CompareAndSwap(after, now.Add(every).UnixMicro())
}
