// Package sample is a dashboard.Source in memory, with a shop's limits and with keys that
// try to break a page. Tests and pictures of the dashboard use it.
package sample

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/policies"
)

// Now is the time of the sample.
var Now = time.Date(2026, 5, 17, 14, 25, 0, 0, time.UTC)

// Hostile are keys that try to break a page.
var Hostile = []string{
	`<img src=x onerror="document.title='hit'"><script>document.title='hit'</script>`,
	"a\u202egnp.exe\u2066 \u200bzero\u200b width\ufeff",
	strings.Repeat("long", 256), // the longest key
	"bell\x07 escape\x1b[31m tab\t line\nbreak \x7f\u0085",
	" leading, 'quotes' \"double\" `ticks` and trailing ",
	"../../etc/passwd?key=1&x=2#frag%00%2f",
	"مفتاح العميل",
	"\U0001F469\u200d\U0001F4BB 𝔸 e\u0301\u0327",
	"constructor", "__proto__",
}

// Source is the sample. Its methods can be called concurrently.
type Source struct {
	mu           sync.Mutex
	err          error
	turn         int
	calls        map[string]int
	rows         []inspect.Key
	denials      []dashboard.DenialSlot
	policies     []policies.Stored
	history      []policies.Change
	overrides    map[string]inspect.Override
	applied      *policies.Policies // policies and overrides, as limiters have them
	version      int64              // of both
	reservations map[string][]inspect.Reservation
	checks       []doctor.Check
}

// New returns a sample, with the keys of Hostile if hostile is set.
func New(hostile bool) *Source {
	s := &Source{version: 41, calls: map[string]int{}, overrides: map[string]inspect.Override{}, reservations: map[string][]inspect.Reservation{}, checks: checks}
	s.addPolicies()
	s.addKeys()
	s.addDenials()
	if hostile {
		for i, key := range Hostile {
			s.addRow("login", key, 12-float64(i)/8)
		}
		key := Hostile[0]
		s.overrides[key] = inspect.Override{Policy: "login", Key: key, Unlimited: true, Note: key, ChangedBy: key}
		s.reservations[key] = []inspect.Reservation{{ID: key, Policy: "login", Algorithm: algorithm.TokenBucket, Units: 2, ExpiresAt: Now.Add(time.Minute)}}
		s.checks = append(slices.Clone(checks), doctor.Check{Name: key, Verdict: 9, Message: key, Details: []string{key}, Fix: key})
		o := policies.Override{Policy: "login", Key: key, Unlimited: true}
		s.history = slices.Insert(s.history, 0, policies.Change{Version: 42, ChangedAt: Now, ChangedBy: key, Note: key, Name: "login", Key: key, OverrideAfter: &o})
	}
	edit := policies.Edit{Set: s.policies}
	for _, o := range s.overrides {
		edit.SetOverrides = append(edit.SetOverrides, policies.Override{Policy: o.Policy, Key: o.Key, Limit: o.Limit, Unlimited: o.Unlimited})
	}
	var err error
	if s.applied, err = policies.New(); err == nil {
		_, err = s.applied.Apply(context.Background(), edit)
	}
	if err != nil {
		panic(err) // the sample is wrong
	}
	return s
}

// Break makes all calls fail with err; nil ends that.
func (s *Source) Break(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// Turn changes levels, and the order of the keys.
func (s *Source) Turn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	for i := range s.rows {
		r := &s.rows[i]
		if r.Burst != nil {
			*r.Level = math.Mod(*r.Level+*r.Burst*float64(i%7)/10, *r.Burst)
			*r.Share = *r.Level / *r.Burst
			*r.Remaining = *r.Burst - *r.Level
		}
		r.Denials += int64(i * 37 % 101)
		r.UpdatedAt = new(r.UpdatedAt.Add(time.Duration(i*37%101) * time.Second))
	}
	s.denials[len(s.denials)-1].Denials += 5
}

// Deny adds denials of a policy to the last slot.
func (s *Source) Deny(policy string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denials = append(s.denials, dashboard.DenialSlot{Start: s.now().Truncate(10 * time.Minute), Policy: policy, Denials: n, Units: float64(n)})
}

// Calls returns how often a method was called.
func (s *Source) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// call begins a call of a method, which must end it by s.mu.Unlock. It returns its error.
func (s *Source) call(ctx context.Context, method string) error {
	s.mu.Lock()
	s.calls[method]++
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.err
}

// now is the time of the database's clock.
func (s *Source) now() time.Time { return Now.Add(time.Duration(s.turn) * time.Second) }

// Policies returns the policies.
func (s *Source) Policies(ctx context.Context) (dashboard.Policies, error) {
	err := s.call(ctx, "Policies")
	defer s.mu.Unlock()
	counts := map[string]int{}
	for _, p := range s.policies {
		counts[p.Name] = 0
	}
	for _, o := range s.overrides {
		counts[o.Policy]++
	}
	return dashboard.Policies{At: s.now(), Version: s.version, Policies: slices.Clone(s.policies), Overrides: counts}, err
}

// History returns the changes of a policy, or all.
func (s *Source) History(ctx context.Context, policy string, limit int) ([]policies.Change, error) {
	err := s.call(ctx, "History")
	defer s.mu.Unlock()
	var changes []policies.Change
	for _, c := range s.history {
		if (policy == "" || c.Name == policy) && len(changes) < limit {
			changes = append(changes, c)
		}
	}
	return changes, err
}

// Keys returns the first rows of a query.
func (s *Source) Keys(ctx context.Context, q dashboard.Query) (dashboard.Keys, error) {
	err := s.call(ctx, "Keys")
	defer s.mu.Unlock()
	keys := dashboard.Keys{At: s.now(), Rows: []inspect.Key{}}
	for _, r := range s.rows {
		if (q.Policy == "" || r.Policy == q.Policy) && strings.HasPrefix(r.Key, q.Prefix) && (q.Order != inspect.ByDenials || r.Denials > 0) {
			keys.Rows = append(keys.Rows, s.copied(r))
		}
	}
	inspect.Sort(keys.Rows, q.Order)
	keys.More = len(keys.Rows) > q.Limit
	keys.Rows = keys.Rows[:min(len(keys.Rows), q.Limit)]
	return keys, err
}

// copied returns a copy of a row whose levels Turn does not change. All of its denials are
// recent.
func (s *Source) copied(r inspect.Key) inspect.Key {
	r.RecentDenials, r.LastRequestAt = r.Denials, r.UpdatedAt
	if r.Shadow = r.Policy == "checkout"; r.Shadow {
		r.RecentShadowed = r.Denials
	}
	if _, o, _ := s.applied.At(context.Background(), r.Policy, r.Key, time.Now()); o != nil && o.Blocked {
		r.BlockedBy = asRow(*o)
	}
	r.Blocked = r.BlockedUntil != nil || r.BlockedBy != nil
	r.Complete(inspect.Recently.Minutes(), s.now())
	if r.Burst != nil {
		r.Level, r.Share, r.Remaining = new(*r.Level), new(*r.Share), new(*r.Remaining)
	}
	return r
}

// Search returns the first keys that begin with prefix.
func (s *Source) Search(ctx context.Context, prefix string) (dashboard.Names, error) {
	err := s.call(ctx, "Search")
	defer s.mu.Unlock()
	names := dashboard.Names{Keys: []string{}}
	for _, r := range s.rows {
		if strings.HasPrefix(r.Key, prefix) {
			names.Keys = append(names.Keys, r.Key)
		}
	}
	slices.Sort(names.Keys)
	names.Keys = slices.Compact(names.Keys)
	names.More = len(names.Keys) > 10
	names.Keys = names.Keys[:min(len(names.Keys), 10)]
	return names, err
}

// Denials returns the denials of a query.
func (s *Source) Denials(ctx context.Context, q dashboard.DenialQuery) (dashboard.Denials, error) {
	err := s.call(ctx, "Denials")
	defer s.mu.Unlock()
	all := dashboard.Denials{At: s.now(), Hours: q.Hours, SlotS: q.Slot().Seconds(), Slots: []dashboard.DenialSlot{}}
	slots := s.denials
	if q.Key != "" {
		slots = s.denialsOf(q.Key)
	}
	for _, d := range slots {
		if !d.Start.Before(q.From(all.At)) {
			d.Start = d.Start.Truncate(q.Slot())
			all.Slots = append(all.Slots, d)
		}
	}
	return all, err
}

// denialsOf spreads the denials of a key over the day.
func (s *Source) denialsOf(key string) (slots []dashboard.DenialSlot) {
	for _, r := range s.rows {
		start := s.now().Truncate(10 * time.Minute)
		for left := r.Denials; r.Key == key && left > 0; start = start.Add(-30 * time.Minute) {
			n := left/2 + 1
			left -= n
			slots = append(slots, dashboard.DenialSlot{Start: start, Policy: r.Policy, Denials: n, Blocked: n / 3, Units: float64(n)})
		}
	}
	return slots
}

// Key returns what is stored of a key.
func (s *Source) Key(ctx context.Context, ref dashboard.Ref) (dashboard.Key, error) {
	err := s.call(ctx, "Key")
	defer s.mu.Unlock()
	key := dashboard.Key{At: s.now(), Stored: ref.Key}
	key.Keys, key.Reservations, key.Overrides = []inspect.Key{}, append([]inspect.Reservation{}, s.reservations[ref.Key]...), []inspect.Override{}
	if o, is := s.overrides[ref.Key]; is {
		key.Overrides = append(key.Overrides, o)
	}
	key.Usage = []dashboard.KeyUsage{}
	for _, r := range s.rows {
		if r.Key != ref.Key {
			continue
		}
		if r.Policy == "budget" {
			of := dashboard.KeyUsage{Policy: r.Policy}
			for i := range 20 {
				of.Sums = append(of.Sums, policies.UsageSum{At: key.At.Truncate(day).AddDate(0, 0, i-19), Units: float64(2000 + i*311%1700)})
			}
			key.Usage = append(key.Usage, of)
		}
		key.Keys = append(key.Keys, s.copied(r))
		if by := key.Keys[len(key.Keys)-1].BlockedBy; by != nil && by.Match != "" {
			key.Overrides = append(key.Overrides, *by)
		}
	}
	return key, err
}

// Why returns the policies of a key's rows, with an hour's denials.
func (s *Source) Why(ctx context.Context, ref dashboard.Ref, at time.Time) (inspect.Why, error) {
	err := s.call(ctx, "Why")
	defer s.mu.Unlock()
	if at.IsZero() {
		at = s.now()
	}
	why := inspect.Why{Key: ref.Key, Since: at.Add(-day), At: at, Policies: []inspect.WhyOfPolicy{}}
	for _, r := range s.rows {
		if r.Key != ref.Key {
			continue
		}
		p := inspect.WhyOfPolicy{Policy: r.Policy, Algorithm: r.Algorithm, Origin: inspect.OriginDatabase, Now: s.copied(r)}
		if i := slices.IndexFunc(s.policies, func(p policies.Stored) bool { return p.Name == r.Policy }); i >= 0 {
			p.InForce, p.ChangedAt, p.ChangedBy = &s.policies[i].Policy, s.policies[i].ChangedAt, s.policies[i].ChangedBy
		}
		if o, is := s.overrides[r.Key]; is && o.Policy == r.Policy {
			p.Override = new(o.Stored())
			if p.InForce != nil {
				effective, _ := p.Override.Apply(*p.InForce)
				p.InForce = &effective
			}
		}
		if r.Denials > 0 {
			p.Denied = &inspect.Denied{
				Policy: r.Policy, Algorithm: r.Algorithm, Key: r.Key, Denials: r.Denials, ByLimit: r.Denials - r.Denials/5, Blocked: r.Denials / 5,
				Units: float64(r.Denials), FirstDeniedAt: at.Add(-time.Hour), LastDeniedAt: at, RetryAt: new(at.Add(time.Minute)),
			}
		}
		why.Policies = append(why.Policies, p)
	}
	return why, err
}

// Doctor returns the checks.
func (s *Source) Doctor(ctx context.Context) (doctor.Report, error) {
	err := s.call(ctx, "Doctor")
	defer s.mu.Unlock()
	return doctor.Report{At: s.now(), Checks: slices.Clone(s.checks)}, err
}

// find returns the row of a target, or nil.
func (s *Source) find(t dashboard.Target) *inspect.Key {
	for i := range s.rows {
		if r := &s.rows[i]; r.Key == t.Key && r.Policy == t.Policy && r.Algorithm == algorithm.Name(t.Algorithm) {
			return r
		}
	}
	return nil
}

// Block blocks a key.
func (s *Source) Block(ctx context.Context, t dashboard.Target, d time.Duration) error {
	err := s.call(ctx, "Block")
	defer s.mu.Unlock()
	if err != nil {
		return err
	}
	r := s.find(t)
	if r == nil {
		s.rows = append(s.rows, inspect.Key{Policy: t.Policy, Algorithm: algorithm.Name(t.Algorithm), Key: t.Key})
		r = &s.rows[len(s.rows)-1]
	}
	end := s.now().Add(d)
	r.BlockedUntil, r.UpdatedAt, r.EmptyAt = &end, new(s.now()), &end
	return nil
}

// Unblock lifts a block.
func (s *Source) Unblock(ctx context.Context, t dashboard.Target) (bool, error) {
	err := s.call(ctx, "Unblock")
	defer s.mu.Unlock()
	r := s.find(t)
	if err != nil || r == nil || r.BlockedUntil == nil {
		return false, err
	}
	r.BlockedUntil = nil
	return true, nil
}

// Reset deletes a row.
func (s *Source) Reset(ctx context.Context, t dashboard.Target) (bool, error) {
	err := s.call(ctx, "Reset")
	defer s.mu.Unlock()
	r := s.find(t)
	if err != nil || r == nil {
		return false, err
	}
	*r = s.rows[len(s.rows)-1]
	s.rows = s.rows[:len(s.rows)-1]
	return true, nil
}

// random is the same in every sample.
func random() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
