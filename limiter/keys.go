package limiter

import (
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// roomFor is the RetryAfter of a denial by ReasonKeys: the janitor makes room, every minute by
// default.
const roomFor = time.Minute

// withoutRow returns the answer to a request for a key that has no row and gets none. The
// policy's shared row has decided it, or it was not decided.
func (e *engine) withoutRow(c *call) (Result, error) {
	switch {
	case c.op.Full == store.ByRest:
		q := c.op.OfRest()
		r := result(&q, c.verb, &c.op.Outcome, c.request.Policy.RestLimit, e.source)
		r.grant = algorithm.Grant{} // the key's own row, once it has one, has nothing to give back
		return r, nil
	case c.verb == verbBlock:
		return Result{}, &store.FullError{Policy: c.request.Policy.Name, MaxKeys: c.request.Policy.MaxKeys}
	}
	return e.noRoom(c.verb, &c.request), nil
}

// noRoom returns the answer of a policy that has no row for a key.
func (e *engine) noRoom(v *verb, in *Request) Result {
	r := undecided(in, e.source, e.clockTime())
	r.Full, r.ResetAfter = true, roomFor
	if v == verbCharge {
		r.Allowed = true // and nothing was recorded
		return r
	}
	r.Reason, r.RetryAfter = ReasonKeys, roomFor
	return r
}

// noRoomAll returns the answers of a set of which some keys have no row and get none.
func (e *engine) noRoomAll(s *set) Results {
	all := e.untaken(s, false, e.clockTime())
	for _, g := range s.groups {
		for _, i := range g.indexes {
			if g.Full {
				all.PerRequest[i] = e.noRoom(verbAll, &s.requests[i])
			}
		}
	}
	all.blame()
	return all
}

// JoinKey joins parts into one key so that different parts never give the same key:
// JoinKey("a:b", "c") differs from JoinKey("a", "b:c"). Parts are separated by colons. A
// colon or backslash inside a part is escaped by a backslash, so one part without either
// stays as it is. Put the person or tenant first: `pglimit find` then says by an index that
// there are such keys, and `pglimit forget --part` erases those with the part in any place.
func JoinKey(parts ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, `:`, `\:`)
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = escape.Replace(p)
	}
	return strings.Join(escaped, ":")
}
