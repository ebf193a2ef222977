package policies

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/limiter"
)

// Times between two looks for changes.
const (
	defaultPollEvery = 500 * time.Millisecond
	minPollEvery     = 10 * time.Millisecond
)

// Times between two writes of a program's row, and the longest name in it.
const (
	defaultPublishEvery = 2 * time.Minute
	minPublishEvery     = time.Second
	maxPublishEvery     = 12 * time.Hour // other programs delete a row that is a day old
	maxProgram          = 200            // characters
)

// configured returns Policies without rows.
func configured(config *Config) (*Policies, error) {
	p := &Policies{now: time.Now}
	if config != nil {
		p.config = *config
	}
	c := &p.config
	c.PollEvery, c.PublishEvery = cmp.Or(c.PollEvery, defaultPollEvery), cmp.Or(c.PublishEvery, defaultPublishEvery)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch n := len(c.KeySecret); {
	case c.PollEvery < minPollEvery:
		return nil, store.Invalid("policies.Config.PollEvery", c.PollEvery.String(), "must be at least "+minPollEvery.String())
	case c.PublishEvery > 0 && (c.PublishEvery < minPublishEvery || c.PublishEvery > maxPublishEvery):
		return nil, store.Invalid("policies.Config.PublishEvery", c.PublishEvery.String(), "must be from 1s to 12h, or negative to list no program")
	case !utf8.ValidString(c.Program) || strings.IndexByte(c.Program, 0) >= 0 || utf8.RuneCountInString(c.Program) > maxProgram:
		return nil, store.Invalid("policies.Config.Program", store.Quote(c.Program), fmt.Sprintf("must be UTF-8 without NUL, of at most %d characters", maxProgram))
	case c.KeySecret != nil && n < keys.MinSecret:
		return nil, store.Invalid("policies.Config.KeySecret", fmt.Sprintf("of %d bytes", n),
			fmt.Sprintf("must have at least %d bytes; use that of limiter.Config.KeySecret, or nil", keys.MinSecret))
	}
	c.KeySecret = bytes.Clone(c.KeySecret)
	p.state.Store(&state{secret: c.KeySecret})
	return p, nil
}

// follower returns one that polls.
func (p *Policies) follower(rows backend) *follower {
	return &follower{every: p.config.PollEvery, pool: rows, load: p.look, failed: p.failed}
}

// open loads, unless Background is set, follows changes and lists the program.
func (p *Policies) open(ctx context.Context, database *database, f *follower) (*Policies, error) {
	p.rows, p.ofDatabase = database, true
	if p.config.PublishEvery > 0 {
		p.listing = newHeartbeat(database, p.config.Program, p.config.PublishEvery)
		p.listing.state, p.listing.failed = p.published, p.unlisted
	}
	if !p.config.Background {
		if err := p.load(ctx, p.rows); err != nil {
			return nil, err
		}
	}
	following, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.running.Go(func() { f.run(following) })
	if p.listing != nil {
		p.running.Go(func() { p.listing.run(following) })
	}
	return p, nil
}

// published returns what the program's row has.
func (p *Policies) published() (version int64, defaults string, loaded bool) {
	s := p.state.Load()
	all := slices.SortedFunc(maps.Values(s.defaults), func(a, b limiter.Policy) int { return cmp.Compare(a.Name, b.Name) })
	text, err := json.Marshal(append([]limiter.Policy{}, all...))
	return s.version, string(text), p.loaded.Load() && err == nil
}

// unlisted logs the first of several errors in a row.
func (p *Policies) unlisted(ctx context.Context, err error) {
	p.config.Logger.WarnContext(ctx, "pglimit: this program cannot be listed in pglimit_program; its decisions and policies do not depend on that", "error", err)
}

// look loads if the database has another version than the loaded one. One that is lower is
// that of a database that was restored.
func (p *Policies) look(ctx context.Context, from backend, version int64) error {
	if version == p.Version() && p.loaded.Load() {
		return nil
	}
	return p.load(ctx, from)
}

// failed logs at most one warning a minute.
func (p *Policies) failed(ctx context.Context, err error) {
	if _, ok := p.failing.Next(time.Minute); ok {
		p.config.Logger.WarnContext(ctx, "pglimit: the policies in the database cannot be read; those last known stay",
			"version", p.Version(), "error", err)
	}
}

// load reads all rows. When it returns, this process has what was committed before the call.
func (p *Policies) load(ctx context.Context, from backend) error {
	version, err := p.reload(ctx, from)
	if err != nil {
		return err
	}
	p.loaded.Store(true)
	p.listing.change()
	if p.config.OnChange != nil {
		p.config.OnChange(version)
	}
	return nil
}

func (p *Policies) reload(ctx context.Context, from backend) (version int64, err error) {
	p.loading.Lock()
	defer p.loading.Unlock()
	last := p.state.Load()
	refuse := func(row rowID, err error) {
		attributes := []any{"policy", row.policy}
		if row.key != "" {
			attributes = append(attributes, cmp.Or(string(row.match), "key"), row.key)
		}
		p.config.Logger.ErrorContext(ctx, "pglimit: a stored policy or override is not valid; the last known one stays, if there is one", append(attributes, "error", err)...)
	}
	var next *state
	rows, err := from.Load(ctx, last.mark, func(all bool) (change func(*Override)) {
		next, change = last.next(all, refuse)
		return change
	})
	if err != nil {
		return 0, err
	}
	next.setPolicies(last, rows, refuse)
	p.state.Store(next)
	if rows.more {
		p.config.Logger.LogAttrs(ctx, slog.LevelError, "pglimit: there are too many overrides; those after the last one loaded, by policy and key, do not apply",
			slog.Int("most", MaxOverrides))
	}
	return rows.version, nil
}
