package dashboard

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/shards"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

const (
	maxKept  = 1000 // of each list of a key
	maxNames = 10
	lockWait = 3 * time.Second // for a row that another transaction has locked
)

var queries = db.New()

func init() { exec.DistributeMany(queries.DashboardKeyDenials) }

// Database is the Source that reads and changes the database of a pool.
type Database struct {
	pool      *pgxpool.Pool
	secret    []byte
	inspector *inspect.Inspector
	policies  *policies.Policies
	changes   *pgxpool.Pool    // so that changes do not wait for reads
	blocks    *limiter.Limiter // over changes; takes keys as they are stored

	top     memo[Query, Keys]
	denials memo[DenialQuery, Denials]
	doctor  memo[struct{}, doctor.Report]
	names   memo[string, Names]
}

// Open returns a Database. secret is the limiters' Config.KeySecret; nil if they have none.
// It loads the policies, and follows their changes until Close; logger gets a warning if they
// cannot be loaded later. The error is that of the database. Open does not close pool.
func Open(ctx context.Context, pool *pgxpool.Pool, secret []byte, logger *slog.Logger) (*Database, error) {
	d := &Database{pool: pool, secret: secret, inspector: inspect.New(pool)}
	d.inspector.Hashed = secret != nil
	var err error
	if d.policies, err = policies.Open(ctx, pool, &policies.Config{DisableListen: true, PublishEvery: -1, PollEvery: time.Second, Logger: logger}); err != nil {
		return nil, err
	}
	if d.changes, err = pgxpool.NewWithConfig(ctx, pool.Config()); err == nil {
		d.blocks, err = limiter.New(d.changes, &limiter.Config{DisableDenyCache: true, Timeout: lockWait, Logger: logger})
	}
	if err != nil {
		_ = d.policies.Close()
		return nil, err
	}
	return d, nil
}

// Close ends following the policies, and closes the connections for changes.
func (d *Database) Close() error {
	defer d.changes.Close()
	if err := d.blocks.Close(); err != nil {
		return err
	}
	return d.policies.Close()
}

// clock returns the database's time. It fails while the database does not answer.
func (d *Database) clock(ctx context.Context) (time.Time, error) {
	us, err := queries.Clock(ctx, d.pool, nil)
	return time.UnixMicro(us).UTC(), exec.Translate(err, false)
}

// stored returns the key as the tables have it.
func (d *Database) stored(ref Ref) string {
	if ref.Stored {
		return ref.Key
	}
	return keys.Stored(ref.Key, d.secret)
}

// Policies returns the policies as of a second ago at most.
func (d *Database) Policies(ctx context.Context) (all Policies, err error) {
	if all.At, err = d.clock(ctx); err != nil {
		return all, err
	}
	all.Version, all.Policies, all.Overrides = d.policies.Version(), append([]policies.Stored{}, d.policies.List()...), map[string]int{}
	for _, p := range all.Policies {
		all.Overrides[p.Name] = d.policies.OverrideCount(p.Name)
	}
	return all, nil
}

// History returns the last changes.
func (d *Database) History(ctx context.Context, policy string, limit int) ([]policies.Change, error) {
	return d.policies.History(ctx, policy, limit)
}

// Denials returns the denials of a query.
func (d *Database) Denials(ctx context.Context, q DenialQuery) (Denials, error) {
	return d.denials.get(ctx, q, func(ctx context.Context) (Denials, error) {
		all := Denials{Hours: q.Hours, SlotS: q.Slot().Seconds(), Slots: []DenialSlot{}}
		var err error
		if all.At, err = d.clock(ctx); err != nil {
			return all, err
		}
		in := db.DashboardKeyDenialsParams{
			SizeUs: q.Slot().Microseconds(), FromUs: q.From(all.At).UnixMicro(), Key: d.stored(q.Ref),
		}
		rows, err := d.slots(ctx, q, in)
		for _, r := range rows {
			all.Slots = append(all.Slots, DenialSlot{time.UnixMicro(r.StartUs).UTC(), r.Policy, r.Denials, r.Shadowed, r.Blocked, r.AboveBurst, r.Overloaded, r.Units})
		}
		return all, exec.Translate(err, false)
	})
}

// slots reads the slots of all keys or of one.
func (d *Database) slots(ctx context.Context, q DenialQuery, in db.DashboardKeyDenialsParams) (rows []db.DashboardKeyDenialsRow, err error) {
	if q.Key != "" {
		m, err := shards.Read(ctx, d.pool)
		if err != nil {
			return nil, err
		}
		if m != nil {
			return queries.DashboardKeyDenials(ctx, exec.OnShard(d.pool, in.Key), in)
		}
		return queries.DashboardKeyDenials(ctx, d.pool, in)
	}
	all, err := queries.DashboardDenials(ctx, d.pool, db.DashboardDenialsParams{SizeUs: in.SizeUs, FromUs: in.FromUs})
	for _, r := range all {
		rows = append(rows, db.DashboardKeyDenialsRow(r))
	}
	return rows, err
}

// Doctor makes the doctor's checks.
func (d *Database) Doctor(ctx context.Context) (doctor.Report, error) {
	return d.doctor.get(ctx, struct{}{}, func(ctx context.Context) (doctor.Report, error) {
		return doctor.Run(ctx, d.pool, &doctor.Config{Timeout: 2 * time.Second})
	})
}

// Keys returns the first keys of a query. With a prefix it orders the first keys by name.
func (d *Database) Keys(ctx context.Context, q Query) (Keys, error) {
	return d.top.get(ctx, q, func(ctx context.Context) (k Keys, err error) {
		if k.At, err = d.clock(ctx); err != nil {
			return k, err
		}
		filter := inspect.Filter{Policy: q.Policy}
		if q.Prefix != "" {
			found, err := d.inspector.Find(ctx, inspect.Keys{Text: q.Prefix, Prefix: true}, filter, maxKept)
			if err != nil {
				return k, err
			}
			k.Rows, k.More = found.Keys, found.More
			if q.Order == inspect.ByDenials {
				k.Rows = slices.DeleteFunc(k.Rows, func(r inspect.Key) bool { return r.RecentDenials == 0 })
			}
			inspect.Sort(k.Rows, q.Order)
		} else {
			found, err := d.inspector.Top(ctx, inspect.TopQuery{By: q.Order, Filter: filter, Limit: q.Limit + 1, Within: time.Duration(q.Hours) * time.Hour})
			if err != nil {
				return k, err
			}
			k.Rows = found.Keys
		}
		if len(k.Rows) > q.Limit {
			k.Rows, k.More = k.Rows[:q.Limit], true
		}
		return k, nil
	})
}

// Search returns the first keys that begin with prefix.
func (d *Database) Search(ctx context.Context, prefix string) (Names, error) {
	return d.names.get(ctx, prefix, func(ctx context.Context) (n Names, err error) {
		n.Keys, n.More, err = d.inspector.Names(ctx, prefix, maxNames)
		return n, err
	})
}

// Key returns all that is stored of one key.
func (d *Database) Key(ctx context.Context, ref Ref) (k Key, err error) {
	k.Stored = d.stored(ref)
	if k.Found, err = d.inspector.Find(ctx, inspect.Keys{Text: k.Stored, Raw: ref.Key}, inspect.Filter{}, maxKept); err != nil {
		return k, err
	}
	if k.At, err = d.clock(ctx); err != nil {
		return k, err
	}
	k.Usage = []KeyUsage{}
	for _, r := range k.Keys {
		sums, err := d.policies.UsageSince(ctx, r.Policy, k.Stored, k.At.AddDate(0, 0, -29), limiter.Day) // these policies have no KeySecret
		if err != nil {
			return k, err
		}
		if of := (KeyUsage{r.Policy, sums}); len(sums) > 0 && !slices.ContainsFunc(k.Usage, func(u KeyUsage) bool { return u.Policy == r.Policy }) {
			k.Usage = append(k.Usage, of)
		}
	}
	return k, nil
}

// Why returns what limits one key, or limited it at a time.
func (d *Database) Why(ctx context.Context, ref Ref, at time.Time) (inspect.Why, error) {
	stored := d.stored(ref)
	return d.inspector.Why(ctx, d.policies, stored, inspect.WhyQuery{Key: stored, Raw: ref.Key, At: at, Within: 24 * time.Hour})
}

// Overrides returns the first overrides of a policy, by key.
func (d *Database) Overrides(ctx context.Context, policy string) (all Overrides, err error) {
	if all.At, err = d.clock(ctx); err == nil {
		all.Overrides, all.More, err = d.inspector.Overrides(ctx, policy, maxRows)
	}
	return all, err
}

// key returns the key of an edit as the tables have it; "" for a policy.
func (d *Database) key(e Edit) string {
	if e.Override == nil {
		return ""
	}
	return d.stored(Ref{Key: e.Override.Key, Stored: e.Stored || e.Override.Match != ""})
}

// Current returns what an edit changes.
func (d *Database) Current(ctx context.Context, e Edit) (c Current, err error) {
	c.Version = d.policies.Version() // first: the answer is of this version or a later one, which Apply refuses
	if c.At, err = d.clock(ctx); err != nil {
		return c, err
	}
	key := d.key(e)
	var decides *policies.Override
	if c.Policy, decides, err = d.policies.At(ctx, e.name(), cmp.Or(key, "none"), c.At); err != nil || e.Override == nil {
		return c, err
	}
	if decides != nil && e.Override.Match == "" {
		c.Match = decides.Match
	}
	all, err := d.policies.Overrides(ctx, e.name())
	if i := slices.IndexFunc(all, func(o policies.Override) bool { return o.Key == key && o.Match == e.Override.Match }); i >= 0 {
		c.Override = &all[i]
	}
	return c, err
}

// Facts returns what the database has for the effect of an edit.
func (d *Database) Facts(ctx context.Context, e Edit, a limiter.Algorithm, since time.Time, burst float64) (f Facts, err error) {
	f.Since = since
	row, err := queries.DashboardDenied(ctx, d.pool, db.DashboardDeniedParams{Policy: e.name(), Algorithm: string(algorithm.Name(a).Table()), Key: d.key(e), FromUs: since.UnixMicro()})
	if err != nil {
		return f, exec.Translate(err, false)
	}
	f.Denials, f.Shadowed, f.Blocked, f.AboveBurst, f.Overloaded = row.Denials, row.Shadowed, row.Blocked, row.AboveBurst, row.Overloaded
	f.Keys, f.Above, err = d.inspector.Above(ctx, inspect.Target{Algorithm: algorithm.Name(a), Policy: e.name(), Key: d.key(e)}, burst)
	return f, err
}

// Apply makes an edit.
func (d *Database) Apply(ctx context.Context, e Edit) (version int64, err error) {
	defer d.top.forget()
	return d.policies.Apply(ctx, e.PolicyEdit(d.key(e)))
}

// targets returns a target for an Inspector.
func (d *Database) targets(t Target) []inspect.Target {
	return []inspect.Target{{Algorithm: algorithm.Name(t.Algorithm), Policy: t.Policy, Key: d.stored(t.Ref)}}
}

// Block blocks a key, with or without a row.
func (d *Database) Block(ctx context.Context, t Target, lasts time.Duration) error {
	defer d.top.forget()
	// Blocks do not depend on the limit and the period.
	p := limiter.Policy{Name: t.Policy, Algorithm: t.Algorithm, Limit: 1, Period: time.Second}
	return d.blocks.Block(ctx, p, d.stored(t.Ref), lasts)
}

// Unblock lifts a block.
func (d *Database) Unblock(ctx context.Context, t Target) (bool, error) {
	defer d.top.forget()
	counts, err := inspect.New(d.changes).Unblock(ctx, d.targets(t), inspect.Options{Wait: lockWait})
	return len(counts) > 0, err
}

// Reset deletes what a key has used.
func (d *Database) Reset(ctx context.Context, t Target) (bool, error) {
	defer d.top.forget()
	counts, err := inspect.New(d.changes).Reset(ctx, d.targets(t), inspect.Options{Wait: lockWait})
	return len(counts) > 0, err
}
