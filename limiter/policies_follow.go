package limiter

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/policies"
	"github.com/pglimit/pglimit/internal/store"
)

// Times between two looks for changes.
const (
	defaultPollEvery = 500 * time.Millisecond
	minPollEvery     = 10 * time.Millisecond
)

// newPolicies returns Policies without a store.
func newPolicies(config *PoliciesConfig) (*Policies, error) {
	p := &Policies{now: time.Now}
	if config != nil {
		p.config = *config
	}
	c := &p.config
	c.PollEvery = cmp.Or(c.PollEvery, defaultPollEvery)
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
	return &policies.Follower{Every: p.config.PollEvery, Store: s, Look: p.look, Failed: p.failed}
}

// open loads, unless Background is set, and follows changes.
func (p *Policies) open(ctx context.Context, f *policies.Follower) (*Policies, error) {
	p.ofDatabase = true
	if !p.config.Background {
		if err := p.load(ctx, p.store); err != nil {
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

// look loads if the store has another version than the loaded one. One that is lower is
// that of a database that was restored.
func (p *Policies) look(ctx context.Context, s policies.Store, version int64) error {
	if version == p.Version() && p.loaded.Load() {
		return nil
	}
	if err := p.load(ctx, s); err != nil {
		return err
	}
	p.loaded.Store(true)
	return nil
}

// failed logs at most one warning a minute.
func (p *Policies) failed(ctx context.Context, err error) {
	if _, ok := p.failing.next(time.Minute); ok {
		p.config.Logger.WarnContext(ctx, "pglimit: the policies in the database cannot be read; those last known stay",
			"version", p.Version(), "error", err)
	}
}
