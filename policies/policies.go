// Package policies keeps rate-limit policies, and the overrides of single keys, in the database.
// Programs have them in memory and follow changes, so that a limit changes without a deployment.
//
//	live, err := policies.Open(ctx, pool, nil)
//	if err == nil {
//		err = live.Default(limiter.PerMinute("login", 5)) // until the database has one
//	}
//	l, err := limiter.New(pool, &limiter.Config{Policies: live}) // applies overrides
//	login, err := live.Get("login")
//	r, err := l.Allow(ctx, login, user)
package policies

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/throttle"
	"github.com/pglimit/pglimit/internal/valid"
	"github.com/pglimit/pglimit/limiter"
)

// ErrNoPolicy is returned for a name without a policy, in the database and among the
// defaults.
var ErrNoPolicy = errors.New("pglimit: no such policy")

// ErrChanged is returned by Policies.Apply if the policies are no longer those of the version
// that the caller had read. Nothing was changed.
var ErrChanged = errors.New("pglimit: the policies were changed meanwhile")

// Config sets up Policies. The zero value and nil have the defaults that each field names.
type Config struct {
	// PollEvery is the time between two looks for changes, where notifications do not
	// arrive: behind a pooler, and with DisableListen. Default: 500ms, at least 10ms. Where
	// they do, it is 2 seconds.
	PollEvery time.Duration
	// DisableListen uses no connection for notifications. Each look borrows one from the
	// pool. Default: false; one connection besides the pool's stays open.
	DisableListen bool
	// Background makes Open return before the policies are loaded. Default: false; it returns
	// the error of the first load.
	Background bool
	// KeySecret is the limiters' Config.KeySecret, for the keys of overrides: of at least 16
	// bytes, or nil. Default: nil. A Limiter refuses Policies of a database that have another.
	// Those of New have none, and keep keys as they are.
	KeySecret []byte
	// OnChange, if set, is called after each load, the first included, with the version that
	// was loaded. It is called on the goroutine that loads, so it must not block, and not call
	// Close. If an Apply loads at the same time, the versions may come out of order.
	OnChange func(version int64)
	// PublishEvery is the time between two writes of this program's row in pglimit_program,
	// which `pglimit programs` lists: name, host, process, version of the policies and default
	// policies. A change of these is written within about a second. Close deletes the row.
	// Default: 2 minutes. Range: 1s to 12h; negative: the program is not listed. If a row
	// cannot be written, decisions and policies are as without it.
	PublishEvery time.Duration
	// Program is the program's name in that row, of up to 200 characters. Default: the name of
	// its file.
	Program string
	// Logger gets a warning if policies cannot be loaded, at most one a minute, one if
	// the program cannot be listed, and an error for a stored policy that is not valid.
	// Default: slog.Default().
	Logger *slog.Logger
}

// Stored is a policy in the database.
type Stored struct {
	limiter.Policy
	// Askers lets roles that may only request use the policy: see docs/sql.md.
	Askers bool `json:"askers,omitempty"`
	// CountDenials makes the SQL functions add each denial to pglimit_denial, as package
	// deniallog does for a Limiter: see docs/sql.md.
	CountDenials bool `json:"count_denials,omitempty"`
	// MaxTTL is the longest reservation of an asker: from one second to a hundred years.
	// 0 is a day.
	MaxTTL time.Duration `json:"max_ttl,omitempty"`
	// Note says why the policy was changed last: up to 1,000 characters.
	Note string `json:"note,omitempty"`
	// Version, ChangedAt and ChangedBy (a role) are of the last change. They are ignored
	// when a policy is written.
	Version   int64     `json:"version,omitempty"`
	ChangedAt time.Time `json:"changed_at,omitzero"`
	ChangedBy string    `json:"changed_by,omitempty"`
}

// Match is which keys an Override is for: the one that is its Key, unless it is one of these.
// The keys are the callers': Config.KeySecret hashes them later.
type Match string

const (
	// MatchPrefix is for the keys that begin with Key.
	MatchPrefix Match = "prefix"
	// MatchPattern is for the keys that match Key as a whole. In it * stands for any characters, also
	// none, and ? for any one. Key has at most 128 bytes and 8 ?.
	MatchPattern Match = "pattern"
	// MatchCIDR is for the keys that are an address or a network in the network Key, such as
	// 203.0.113.0/24, or whose last part is one: see limiter.JoinKey.
	MatchCIDR Match = "cidr"
)

// Override is what differs for one key of a policy, or for several if Match is set. A nil
// or empty field keeps what the policy has. At least one of Limit, Factor, Burst, Anchor,
// Unlimited, Blocked and Shadow is set. Unlimited and Blocked exclude all others, and Factor excludes Limit.
//
// An override with a Match is Unlimited or Blocked. If several apply to a key, the first of
// these decides: an Unlimited or Blocked one of the key itself, an Unlimited one with a Match, a
// Blocked one with a Match.
//
// If clients choose a key or its last part, such as a user's name, they can choose one that
// an Unlimited override with a Match lets pass. Make such overrides for keys that clients
// cannot choose only.
//
// If Burst is nil, the policy's Burst changes in proportion to its Limit: ten times the limit
// admits ten times as much at once. A product is at least 1e-9 and at most 2^53.
//
// For a policy of limiter.Attempts or limiter.Concurrency the Limit and Burst after the override
// must be whole. Apply refuses others. If they come from a statement of SQL or a later change of
// the policy, each Attempt or Acquire of the key returns ErrInvalid.
type Override struct {
	Policy    string    `json:"policy"`              // the policy's name
	Key       string    `json:"key"`                 // the caller's; in an answer as stored, its HMAC if Config.KeySecret is set
	Match     Match     `json:"match,omitempty"`     // empty: Key is the only key; else Key is a prefix, a pattern or a network
	Limit     *float64  `json:"limit,omitempty"`     // instead of Policy.Limit, from 1e-9 to 2^53
	Factor    *float64  `json:"factor,omitempty"`    // times Policy.Limit, as that is at each decision: from 1e-9 to 2^53
	Burst     *float64  `json:"burst,omitempty"`     // instead of Policy.Burst, for buckets; 0 is *Limit, which is then needed
	Anchor    string    `json:"anchor,omitempty"`    // instead of Policy.Anchor, for policies with a Calendar
	Unlimited bool      `json:"unlimited,omitempty"` // requests pass without a decision, with limiter.SourceOverride, and count nothing
	Blocked   bool      `json:"blocked,omitempty"`   // requests are denied without a decision, with limiter.SourceOverride and limiter.ReasonBlocked
	Shadow    *bool     `json:"shadow,omitempty"`    // instead of Policy.Shadow
	Until     time.Time `json:"until,omitzero"`      // the end, by each process's clock; zero is none
	Note      string    `json:"note,omitempty"`      // up to 1,000 characters

	// Version, ChangedAt and ChangedBy (a role) are of the last change. They are ignored
	// when an override is written.
	Version   int64     `json:"version,omitempty"`
	ChangedAt time.Time `json:"changed_at,omitzero"`
	ChangedBy string    `json:"changed_by,omitempty"`
}

// Change is an entry of the history.
type Change struct {
	Version   int64     `json:"version"`
	ChangedAt time.Time `json:"changed_at"`
	ChangedBy string    `json:"changed_by"`
	Note      string    `json:"note,omitempty"`
	Name      string    `json:"name"`          // the policy's
	Key       string    `json:"key,omitempty"` // of an override, as stored; empty for the policy. The override has its Match
	// Before and After are the policy before and after the change; nil if there was none.
	// They are nil for an override.
	Before *Stored `json:"before,omitempty"`
	After  *Stored `json:"after,omitempty"`
	// OverrideBefore and OverrideAfter are the same for an override.
	OverrideBefore *Override `json:"override_before,omitempty"`
	OverrideAfter  *Override `json:"override_after,omitempty"`
}

// Edit is changes to make together. No policy and no override may be in it twice.
type Edit struct {
	// IfVersion, unless 0, makes Apply return ErrChanged if the version in the
	// database is another.
	IfVersion int64
	// Note is the note of all these changes in the history. Default: each change has the note of
	// its policy or override, or none if the edit does not change that note.
	Note            string
	Set             []Stored
	Delete          []string // names
	SetOverrides    []Override
	DeleteOverrides []Override // Policy, Key and Match
}

// MaxOverrides is the largest number of overrides, MaxRules of those of one policy that have a
// Match, and MaxPatterns of its patterns, since a decision tries each of these. The trigger
// pglimit_override_bound has them too.
const (
	MaxOverrides = 100_000
	MaxRules     = 1_000
	MaxPatterns  = 100
)

// Policies are the policies and overrides that the database holds. Each process has them
// in memory, and a change reaches all of them within a second, or within 5 seconds if the
// connection for notifications died in silence. While the database is away they stay as last
// known. Make them with Open, OpenSQL or New. They are safe for concurrent use. In a
// limiter.Config a nil *Policies is none.
type Policies struct {
	rows   backend
	config Config
	now    func() time.Time
	state  atomic.Pointer[state]

	ofDatabase bool

	loaded  atomic.Bool // at least once
	loading sync.Mutex  // one load at a time
	failing throttle.Throttle
	listing *heartbeat // nil: the program is not listed

	stop    context.CancelFunc // nil: nothing to stop
	running sync.WaitGroup
	closed  sync.Once
}

// Open reads the policies and overrides, and follows changes until Close. It returns
// limiter.ErrInvalid for a nil pool or a field of config that is not valid and, unless
// Config.Background is set, the error of the first load, such as limiter.ErrNotMigrated.
func Open(ctx context.Context, pool *pgxpool.Pool, config *Config) (*Policies, error) {
	if pool == nil {
		return nil, store.Invalid("pool", "nil", "open one with pgxpool.New")
	}
	p, err := configured(config)
	if err != nil {
		return nil, err
	}
	database := newDatabase(exec.PGX(pool, exec.Idle(0)), exec.Warn(p.config.Logger))
	f := p.follower(database)
	if !p.config.DisableListen {
		f.connect, f.notify, database.hears = database.connector(pool), database.Probe, true
	}
	return p.open(ctx, database, f)
}

// OpenSQL is Open for database/sql. It looks for changes every PollEvery.
func OpenSQL(ctx context.Context, db *sql.DB, config *Config) (*Policies, error) {
	if db == nil {
		return nil, store.Invalid("db", "nil", "open one with sql.Open")
	}
	p, err := configured(config)
	if err != nil {
		return nil, err
	}
	database := newDatabase(exec.SQL(db, exec.Idle(0)), exec.Warn(p.config.Logger))
	return p.open(ctx, database, p.follower(database))
}

// New returns Policies without a database, for limiter.NewMemory and tests. The policies given
// are its defaults; one that is not valid is a *limiter.PolicyError. Changes stay in this process.
func New(defaults ...limiter.Policy) (*Policies, error) {
	p, err := configured(nil)
	if err != nil {
		return nil, err
	}
	p.rows = newMemory(func() time.Time { return p.now() })
	if err := p.load(context.Background(), p.rows); err != nil {
		return nil, err
	}
	if err := p.Default(defaults...); err != nil {
		return nil, err
	}
	return p, nil
}

// Close ends following changes, closes the connection for notifications and deletes the
// program's row in pglimit_program. While the database does not answer it takes up to 3
// seconds. Get still returns what was last known, and Apply still works. Close returns nil and
// may be called again.
func (p *Policies) Close() error {
	p.closed.Do(func() {
		if p.stop != nil {
			p.stop()
			p.running.Wait()
		}
	})
	return nil
}

// Default adds policies for names that the database does not have. A later default
// replaces an earlier one of the same name. If one is not valid, none is added, and its
// *limiter.PolicyError is returned.
func (p *Policies) Default(policies ...limiter.Policy) error {
	for _, policy := range policies {
		if err := policy.Validate(); err != nil {
			return err
		}
	}
	p.loading.Lock()
	defer p.loading.Unlock()
	p.state.Store(p.state.Load().withDefaults(policies))
	p.listing.change()
	return nil
}

// Get returns the policy called name: the database's, or else the default. If there is
// none, it returns ErrNoPolicy. It takes no lock and allocates nothing.
func (p *Policies) Get(name string) (limiter.Policy, error) {
	policy, ok := p.state.Load().policy(name)
	if !ok {
		return limiter.Policy{}, noPolicy(name)
	}
	return policy, nil
}

// For returns Get's policy with the override of key applied, and whether key is Unlimited. It
// does not show whether key is Blocked.
func (p *Policies) For(name, key string) (policy limiter.Policy, unlimited bool, err error) {
	if policy, err = p.Get(name); err != nil {
		return limiter.Policy{}, false, err
	}
	if err := valid.Key(key); err != nil {
		return limiter.Policy{}, false, err
	}
	return policy, p.state.Load().Override(&policy, key, p.now).Unlimited, nil
}

// Snapshot returns the overrides as they are now, for a Limiter.
func (p *Policies) Snapshot() limiter.Overrides {
	if p == nil {
		return (*state)(nil)
	}
	return p.state.Load()
}

// Matches reports whether the overrides' keys are those of a Limiter with that KeySecret.
func (p *Policies) Matches(secret []byte) bool {
	return p == nil || !p.ofDatabase || bytes.Equal(p.config.KeySecret, secret)
}

// Version returns the version that is loaded. It is 0 if there never was a policy or
// override in the database, and while Background loads.
func (p *Policies) Version() int64 { return p.state.Load().version }

// List returns all policies in the database, by name.
func (p *Policies) List() []Stored { return slices.Clone(p.state.Load().stored) }

// Overrides reads the overrides of a policy, or of all if name is empty, by policy, key and
// Match. Those that have ended are not among them. The error is that of the database, such as
// limiter.ErrUnavailable.
func (p *Policies) Overrides(ctx context.Context, name string) (all []Override, err error) {
	rows, err := p.rows.Overrides(ctx, name)
	now := p.now()
	for _, o := range rows {
		if o.Until.IsZero() || now.Before(o.Until) {
			all = append(all, o.clone())
		}
	}
	return all, err
}

// OverrideCount returns the number of overrides of a policy that are loaded and have not
// ended. It is 0 for a policy without any.
func (p *Policies) OverrideCount(name string) (n int) {
	of := p.state.Load().overrides[name]
	if of == nil {
		return 0
	}
	for _, o := range of.keys {
		if !o.ended(p.now) {
			n++
		}
	}
	for _, o := range of.rules.all() {
		if !o.ended(p.now) {
			n++
		}
	}
	return n
}

func noPolicy(name string) error {
	return fmt.Errorf("%w: %s", ErrNoPolicy, store.Quote(name))
}
