package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// WhyQuery is a question to Why.
type WhyQuery struct {
	Key    string // as stored
	Raw    string // as Keys.Raw
	Filter Filter
	At     time.Time     // zero: now
	Within time.Duration // before At, in which denials count; up to 90 days. 0: an hour
}

// Why has the limits of a key at a moment and its denials of the time before, as JSON too.
type Why struct {
	Key      string        `json:"key"` // as stored
	Since    time.Time     `json:"since"`
	At       time.Time     `json:"at"`
	Policies []WhyOfPolicy `json:"policies"` // by name and algorithm; never nil
}

// WhyOfPolicy is Why under one policy and algorithm.
type WhyOfPolicy struct {
	Policy    string         `json:"policy"`
	Algorithm algorithm.Name `json:"algorithm"`
	// InForce is the policy with the override applied. It is nil if neither the database
	// nor a program that it lists had one with this name and algorithm: then a program
	// passes the policy with each request.
	InForce *limiter.Policy `json:"in_force"`
	// Origin is OriginDatabase, OriginDefault, or empty.
	Origin Origin `json:"origin"`
	// Program has the default policy, as it is now; empty for other origins. If programs
	// have different ones, it is the one seen last.
	Program string `json:"program,omitempty"`
	// ChangedAt and ChangedBy are of the policy's last change before At, if it was in the
	// database.
	ChangedAt time.Time `json:"changed_at,omitzero"`
	ChangedBy string    `json:"changed_by,omitempty"`
	// Override is the override of the key, which can make it Unlimited; nil for none.
	Override *policies.Override `json:"override"`
	// Denied are the denials by reason; nil for none.
	Denied *Denied `json:"denied"`
	// Now is how the key stands now, whatever At is.
	Now Key `json:"now"`
}

// Origin is where a policy comes from.
type Origin string

// The origins.
const (
	OriginDatabase Origin = "database" // it was stored in the database
	OriginDefault  Origin = "default"  // it is compiled into a program
)

// Past answers what limited a key at a time: a limiter.Policies whose keys are as given.
type Past interface {
	At(ctx context.Context, name, key string, at time.Time) (*policies.Stored, *policies.Override, error)
}

// Why returns what limited a key at a moment: the policies under which it has a row or an
// override now, or had denials in the time before, and the policy of the filter. key is q.Key as past takes it.
func (i *Inspector) Why(ctx context.Context, past Past, key string, q WhyQuery) (why Why, err error) {
	k := Keys{Text: q.Key, Raw: q.Raw}
	if err := k.check(); err != nil {
		return why, err
	}
	if err := q.Filter.check(); err != nil {
		return why, err
	}
	if q.Within == 0 {
		q.Within = time.Hour
	}
	if q.Within < 0 || q.Within > maxWithin {
		return why, store.Invalid("within", duration.Format(q.Within), "must be positive and at most 90 days")
	}
	why.Key, why.Policies = q.Key, []WhyOfPolicy{}
	err = i.read(ctx, func(tx reader) error { return why.read(ctx, tx, q, k) })
	for n := range why.Policies {
		if err == nil {
			err = why.Policies[n].inForce(ctx, past, key, why.At)
		}
	}
	return why, err
}

// mostOfKey is the largest number of policies that a key is looked up under.
const mostOfKey = 1000

// read reads all but the policies in the database.
func (why *Why) read(ctx context.Context, tx reader, q WhyQuery, k Keys) error {
	w, err := last(ctx, tx, Recently)
	if err != nil {
		return err
	}
	past := w
	if !q.At.IsZero() {
		if past.now = q.At.UnixMicro(); past.now > w.now {
			return store.Invalid("at", q.At.Format(time.RFC3339), "is in the future")
		} else if past.now < 0 {
			return store.Invalid("at", q.At.Format(time.RFC3339), "must be after 1970-01-01, in UTC")
		}
		past.now -= past.now % time.Minute.Microseconds() // its minute is whole
	}
	past = past.of(q.Within)
	why.Since = time.UnixMicro(past.from).UTC()
	if why.At = q.At.UTC(); q.At.IsZero() {
		why.At = time.UnixMicro(w.now).UTC()
	}
	f := finder{ctx: ctx, tx: tx, filter: q.Filter, keys: matcher{keys: k, distributed: tx.distributed}, limit: mostOfKey, more: new(bool)}
	all, err := list[Target](f, findKeys(past))
	if err != nil {
		return err
	}
	if all, _, err = f.ruled(all, w, q.Filter.Policy); err != nil {
		return err
	}
	now, err := stand(ctx, tx, w, all, f.rulings)
	if err != nil {
		return err
	}
	denied, err := list[Denied](f, findDenials(past))
	for _, k := range now {
		p := WhyOfPolicy{Policy: k.Policy, Algorithm: k.Algorithm, Now: k}
		for n := range denied {
			if d := &denied[n]; d.Policy == k.Policy && d.Algorithm == k.Algorithm {
				p.Denied = d
			}
		}
		if d := f.defaults[k.Policy]; algorithm.Name(d.policy.Algorithm).Table() == k.Algorithm.Table() {
			p.InForce, p.Origin, p.Program = &d.policy, OriginDefault, d.program
		}
		why.Policies = append(why.Policies, p)
	}
	return err
}

// ruled returns the overrides of the keys, and reads what decides about them. To the rows of one
// key it adds the policies that have an override of it, and the named one, as far as they exist
// now, and sorts them.
func (f *finder) ruled(all []Target, w window, named string) ([]Target, []Override, error) {
	k := f.keys.keys
	overrides, err := list[Override](*f, findOverrides)
	if err == nil {
		f.rulings, err = readRulings(f.ctx, f.tx, k, f.filter, w)
	}
	if err != nil || k.Prefix || k.List != nil {
		return all, overrides, err
	}
	for _, o := range f.rulings.rules {
		if f.rulings.deciding([]Override{o}, k.Text) != nil {
			overrides = append(overrides, o)
		}
	}
	slices.SortStableFunc(overrides, func(a, b Override) int { return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Key, b.Key)) })
	if f.defaults, err = defaultPolicies(f.ctx, f.tx); err != nil {
		return nil, nil, err
	}
	stored, err := queries.Policies(f.ctx, f.tx)
	algorithms := map[string]algorithm.Name{}
	for name, d := range f.defaults {
		algorithms[name] = algorithm.Name(d.policy.Algorithm).Table()
	}
	for _, p := range stored {
		algorithms[p.Name] = algorithm.Name(p.Algorithm).Table()
	}
	for _, o := range append(slices.Clone(overrides), Override{Policy: named}) {
		t := Target{algorithms[o.Policy], o.Policy, k.Text}
		if t.Algorithm != "" && (f.filter.Algorithm == "" || f.filter.stored() == string(t.Algorithm)) && !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b Target) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Algorithm, b.Algorithm))
	})
	return all, overrides, err
}

// defaultPolicy is a policy that is compiled into a program.
type defaultPolicy struct {
	policy  limiter.Policy
	program string
}

// defaultPolicies returns the default policies of the programs by name, each of the program
// that was seen last. It leaves out those that this version cannot read.
func defaultPolicies(ctx context.Context, tx pgx.Tx) (map[string]defaultPolicy, error) {
	programs, err := queries.Programs(ctx, tx)
	all, seen := map[string]defaultPolicy{}, map[string]int64{}
	for _, p := range programs {
		var policies []limiter.Policy
		_ = json.Unmarshal([]byte(p.Defaults), &policies)
		for _, d := range policies {
			if p.SeenAtUs > seen[d.Name] {
				all[d.Name], seen[d.Name] = defaultPolicy{d, fmt.Sprintf("%s on %s", p.Name, p.Host)}, p.SeenAtUs
			}
		}
	}
	return all, err
}

// inForce adds the policy and the override that the database had at a time, and applies the
// override.
func (p *WhyOfPolicy) inForce(ctx context.Context, past Past, key string, at time.Time) error {
	stored, override, err := past.At(ctx, p.Policy, key, at)
	if err != nil {
		return err
	}
	if stored != nil { // it replaces defaults
		p.InForce, p.Origin, p.Program = nil, "", ""
		if algorithm.Name(stored.Algorithm).Table() == p.Algorithm.Table() {
			p.InForce, p.Origin, p.ChangedAt, p.ChangedBy = &stored.Policy, OriginDatabase, stored.ChangedAt, stored.ChangedBy
		}
	}
	if p.Override = override; override != nil && p.InForce != nil {
		effective, _ := override.Apply(*p.InForce)
		p.InForce = &effective
	}
	return nil
}

// Defaults returns the default policies of programs by name, and the program of each: the one
// that was seen last.
func (i *Inspector) Defaults(ctx context.Context) (policies map[string]limiter.Policy, programs map[string]string, err error) {
	policies, programs = map[string]limiter.Policy{}, map[string]string{}
	err = i.read(ctx, func(tx reader) error {
		all, err := defaultPolicies(ctx, tx)
		for name, d := range all {
			policies[name], programs[name] = d.policy, d.program
		}
		return err
	})
	return policies, programs, err
}
