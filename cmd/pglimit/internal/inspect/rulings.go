package inspect

import (
	"context"
	"time"

	"github.com/pglimit/pglimit/policies"
)

// overrideColumns are the fields of an Override, as columns of o.
const overrideColumns = `o.policy, o.key, o.match, o.unlimited, o.blocked, o.limit_units, o.factor, o.burst, o.anchor, o.shadow, o.until, o.note, o.changed_by`

// rulings are the overrides with a match, for the keys of a question at a time.
type rulings struct {
	asked  Keys
	hashed bool
	at     time.Time
	rules  []Override // by policy and key
}

func readRulings(ctx context.Context, tx reader, asked Keys, f Filter, w window) (rulings, error) {
	rules, err := collect[Override](ctx, tx, `SELECT `+overrideColumns+` FROM pglimit_override AS o
WHERE o.match <> ''::text AND ($1::text = ''::text OR o.policy = $1::text) ORDER BY o.policy, o.key, o.match`, params{f.Policy})
	return rulings{asked, tx.hashed, time.UnixMicro(w.now), rules}, err
}

// deciding returns the one of some rules of a policy that decides about a stored key, or nil. A
// hash matches none, unless it is that of the question.
func (r *rulings) deciding(rules []Override, stored string) *Override {
	key, asked := stored, r.asked.Raw != r.asked.Text && stored == r.asked.Text
	if asked {
		key = r.asked.Raw
	}
	rows := make([]policies.Override, len(rules))
	for i, o := range rules {
		rows[i] = o.Stored()
	}
	if i := policies.Deciding(rows, key, r.at); i >= 0 && (asked || !r.hashed) {
		return &rules[i]
	}
	return nil
}

// decide adds to keys what overrides decide about them. BlockedBy is that of the one key.
func (r *rulings) decide(keys []Key) {
	of := map[string][]Override{}
	for _, o := range r.rules {
		of[o.Policy] = append(of[o.Policy], o)
	}
	for i := range keys {
		k := &keys[i]
		if k.BlockedBy == nil && k.Key != "" {
			k.BlockedBy = r.deciding(of[k.Policy], k.Key)
		}
		k.Blocked = k.BlockedUntil != nil || k.BlockedBy != nil
		if k.BlockedBy != nil && k.BlockedBy.Unlimited {
			k.Blocked, k.BlockedBy, k.unlimited = false, nil, true
		}
		if k.BlockedBy != nil && k.Remaining != nil {
			k.Remaining = new(0.0)
		}
	}
}
