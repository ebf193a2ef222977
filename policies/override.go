package policies

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/strictjson"
	"github.com/pglimit/pglimit/internal/valid"
	"github.com/pglimit/pglimit/limiter"
)

// Bounds and defaults of what is stored with policies and overrides.
const (
	maxNote    = 1000 // characters
	maxPattern = 128  // bytes
	maxAnyOne  = 8    // ? in a pattern
)

// firstUntil and lastUntil bound the times that the database accepts: 0 microseconds stand
// for no end.
var firstUntil, lastUntil = time.UnixMicro(1), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)

// validate returns nil if o can be stored for the policy of its name, if there is one.
func (o *Override) validate(policy func(name string) (limiter.Policy, bool)) error {
	switch {
	case !valid.Name(o.Policy):
		return badOverride("Policy", store.Quote(o.Policy), "must match "+valid.NameHelp)
	case valid.Key(o.Key) != nil:
		return valid.Key(o.Key)
	case o.Limit != nil && !valid.Units(*o.Limit):
		return badOverride("Limit", number(o.Limit), "must be from 1e-9 to 2^53")
	case o.Factor != nil && !valid.Units(*o.Factor):
		return badOverride("Factor", number(o.Factor), "must be from 1e-9 to 2^53")
	case o.Factor != nil && o.Limit != nil:
		return badOverride("Factor", number(o.Factor), "excludes Limit: set one of them")
	case o.Burst != nil && *o.Burst == 0 && o.Limit == nil:
		return badOverride("Burst", "0", "needs Limit, for which it stands")
	case o.Burst != nil && *o.Burst != 0 && !valid.Units(*o.Burst):
		return badOverride("Burst", number(o.Burst), "must be from 1e-9 to 2^53, or 0 for Limit")
	case o.Unlimited && o.changes():
		return badOverride("Unlimited", "true", "excludes Limit, Factor, Burst, Anchor and Shadow")
	case o.Blocked && (o.changes() || o.Unlimited):
		return badOverride("Blocked", "true", "excludes Limit, Factor, Burst, Anchor, Shadow and Unlimited")
	case o.changesNothing():
		return fmt.Errorf("%w: Override changes nothing: set Limit, Factor, Burst, Anchor, Unlimited, Blocked or Shadow", store.ErrInvalid)
	case o.Match != "" && !o.Unlimited && !o.Blocked:
		return badOverride("Match", store.Quote(string(o.Match)), "needs Unlimited or Blocked: other changes are for one key")
	case o.Match == MatchCIDR && badNetwork(o.Key) != "":
		return badOverride("Key", store.Quote(o.Key), badNetwork(o.Key))
	case o.Match == MatchPattern && (len(o.Key) > maxPattern || strings.Count(o.Key, "?") > maxAnyOne):
		return badOverride("Key", store.Quote(o.Key), fmt.Sprintf("must have at most %d bytes and %d ? as a pattern: use *, a prefix, or several patterns", maxPattern, maxAnyOne))
	case !slices.Contains([]Match{"", MatchPrefix, MatchPattern, MatchCIDR}, o.Match):
		return badOverride("Match", store.Quote(string(o.Match)), "must be prefix, pattern, cidr or empty")
	case !o.Until.IsZero() && (o.Until.Before(firstUntil) || !o.Until.Before(lastUntil)):
		return badOverride("Until", o.Until.String(), "must be after 1970-01-01 and before the year 10000, or zero for no end")
	}
	if err := validateNote(o.Note); err != nil {
		return err
	}
	if _, err := algorithm.AnchorOf(o.Anchor); err != nil {
		return badOverride("Anchor", store.Quote(o.Anchor), err.Error())
	}
	if p, known := policy(o.Policy); known {
		return o.suits(&p)
	}
	return nil
}

func badOverride(field, value, reason string) error {
	return store.Invalid("Override."+field, value, reason)
}

func number(v *float64) string { return strconv.FormatFloat(*v, 'g', -1, 64) }

// suits returns an error if the override sets what its policy has not.
func (o *Override) suits(p *limiter.Policy) error {
	if p.Algorithm == limiter.Attempts || p.Algorithm == limiter.Concurrency { // whose Limit and Burst are whole
		effective, _ := o.Apply(*p)
		if err := effective.Validate(); err != nil {
			return fmt.Errorf("Override of %s for %s: %w", o.Policy, store.Quote(o.Key), err)
		}
	}
	if p.Algorithm == limiter.Balance {
		for i, v := range [...]*float64{o.Limit, o.Factor, o.Burst} {
			if v != nil {
				return badOverride([...]string{"Limit", "Factor", "Burst"}[i], number(v), fmt.Sprintf("policy %s is a balance, which has no limit: leave it nil, and grant units", o.Policy))
			}
		}
	}
	if o.Anchor != "" && p.Calendar == "" {
		return badOverride("Anchor", store.Quote(o.Anchor), fmt.Sprintf("policy %s has no calendar: leave it empty", o.Policy))
	}
	if o.Burst == nil || *o.Burst == 0 || bucket(p.Algorithm) {
		return nil
	}
	if o.Limit == nil || *o.Burst != *o.Limit {
		return badOverride("Burst", number(o.Burst), fmt.Sprintf("policy %s is a %s, which has no burst apart from Limit: leave it nil", o.Policy, p.Algorithm))
	}
	return nil
}

// UnmarshalJSON reads an override. It refuses unknown fields, and the zero time as until: none
// is no end.
func (o *Override) UnmarshalJSON(data []byte) error {
	type plain Override
	read := struct {
		*plain
		Until *time.Time `json:"until"`
	}{plain: (*plain)(o)}
	o.Until = time.Time{}
	if err := strictjson.Decode(data, &read); err != nil || read.Until == nil {
		return err
	}
	if o.Until = *read.Until; o.Until.IsZero() {
		return errors.New("pglimit: until is 0001-01-01T00:00:00Z: must be after 1970-01-01; leave it out for no end")
	}
	return nil
}

func badNote(note string) (reason string) {
	switch {
	case !utf8.ValidString(note), strings.IndexByte(note, 0) >= 0:
		return "must be UTF-8 without NUL"
	case utf8.RuneCountInString(note) > maxNote:
		return fmt.Sprintf("must have at most %d characters", maxNote)
	}
	return ""
}

func validateNote(note string) error {
	if reason := badNote(note); reason != "" {
		return store.Invalid("Note", store.Quote(note), reason)
	}
	return nil
}

func (o *Override) changesNothing() bool {
	return !o.Unlimited && !o.Blocked && !o.changes()
}

// changes reports whether the override changes fields of the policy.
func (o *Override) changes() bool {
	return o.Limit != nil || o.Factor != nil || o.Burst != nil || o.Anchor != "" || o.Shadow != nil
}

// effect returns the part that a decision needs of an override as stored.
func (o *Override) effect() (e effect) {
	e.unlimited, e.blocked, e.anchor = o.Unlimited, o.Blocked, o.Anchor
	if o.Limit != nil {
		e.limit = *o.Limit
	}
	if o.Factor != nil {
		e.limit, e.times = *o.Factor, true
	}
	if o.Burst != nil {
		e.burst = *o.Burst
	}
	if o.Shadow != nil {
		if e.shadow = -1; *o.Shadow {
			e.shadow = 1
		}
	}
	if !o.Until.IsZero() {
		e.untilUs = o.Until.UnixMicro()
	}
	return e
}

// Apply returns the policy with the override, and whether that makes the key unlimited. It
// does not look at Until.
func (o *Override) Apply(p limiter.Policy) (effective limiter.Policy, unlimited bool) {
	e := o.effect()
	e.apply(&p)
	return p, e.unlimited
}

// clone returns a copy that shares no memory that can change.
func (o Override) clone() Override {
	o.Limit, o.Factor, o.Burst, o.Shadow = clonePointer(o.Limit), clonePointer(o.Factor), clonePointer(o.Burst), clonePointer(o.Shadow)
	return o
}

func clonePointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// stored returns the key of o as it is stored.
func (o *Override) stored(secret []byte) string {
	if o.Match != "" {
		return o.Key
	}
	return keys.Stored(o.Key, secret)
}

// normal returns o as it is stored, without its last change. It shares no memory that
// can change.
func (o *Override) normal(secret []byte) Override {
	n := o.clone()
	n.Key = o.stored(secret)
	if n.Burst != nil && *n.Burst == 0 {
		n.Burst = clonePointer(o.Limit)
	}
	if !n.Until.IsZero() {
		n.Until = n.Until.Truncate(time.Microsecond).UTC()
	}
	n.Version, n.ChangedAt, n.ChangedBy = 0, time.Time{}, ""
	return n
}

// valid returns an error if o, as the database has it, is not valid. A burst or an anchor that its
// policy has no use for is valid: apply ignores it, as the SQL functions do.
func (o *Override) valid() error {
	return o.validate(func(string) (limiter.Policy, bool) { return limiter.Policy{}, false })
}
