package inspect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/limiter"
)

// partsPage is the number of rows that one statement of WithPart reads.
const partsPage = 10_000

// WithPart returns the keys, in order, that are part or that limiter.JoinKey made with it as
// one of several. No index has that: it reads all keys under the filter's policy, page by
// page, and calls progress with the number of rows that it has read. It returns ErrTooMany if
// there are more keys than most.
func (i *Inspector) WithPart(ctx context.Context, part string, f Filter, most int, progress func(read int64)) ([]string, error) {
	if err := (Keys{Text: part}).check(); err != nil {
		return nil, err
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	found := map[string]bool{}
	add := func(some []string) error {
		for _, k := range some {
			if k == part || hasPart(k, part) {
				found[k] = true
			}
		}
		if len(found) > most {
			return fmt.Errorf("%w: more than %s have the part %s", ErrTooMany, printable.Count(most, "key"), store.Quote(part))
		}
		return nil
	}
	tables := []string{"pglimit_reservation", "pglimit_denial", "pglimit_event", "pglimit_usage", "pglimit_override"}
	for _, a := range f.algorithms() {
		tables = append(tables, table(a))
	}
	read := int64(0)
	for _, t := range tables {
		for policy, key, more := f.Policy, "", true; more; {
			var some []string
			var rows int64
			err := i.read(ctx, func(tx reader) error {
				p := params{policy, key, limiter.JoinKey(part), part, int64(partsPage)}
				only := ""
				if f.Policy != "" {
					only = " AND t.policy = " + p.add(f.Policy) + "::text"
				}
				return tx.QueryRow(ctx, fmt.Sprintf(partsOf, t, only), p...).Scan(&rows, &some, &policy, &key)
			})
			if err != nil {
				return nil, err
			}
			if err := add(some); err != nil {
				return nil, err
			}
			read += rows
			if more = rows == partsPage; progress != nil {
				progress(read)
			}
		}
	}
	err := i.read(ctx, func(tx reader) error {
		var some []string
		err := tx.QueryRow(ctx, `SELECT coalesce(pg_catalog.array_agg(DISTINCT h.key), '{}') FROM pglimit_policy_history AS h
			WHERE (strpos(h.key, $1::text) > 0 OR h.key = $2::text) AND ($3::text = ''::text OR h.name = $3::text)`, limiter.JoinKey(part), part, f.Policy).Scan(&some)
		if err != nil {
			return err
		}
		return add(some)
	})
	return slices.Sorted(maps.Keys(found)), err
}

// partsOf reads the page of a table after a policy $1 and key $2. It returns the number of
// rows, the keys that contain $3 or are $4, and the last row. Rows that a page cuts off and
// that the next does not read have the key of the last.
const partsOf = `WITH page AS MATERIALIZED (
    SELECT t.policy, t.key FROM %[1]s AS t
    WHERE (t.policy, t.key) > ($1::text, $2::text)%[2]s
    ORDER BY t.policy, t.key LIMIT $5::bigint
)
SELECT count(*), coalesce(pg_catalog.array_agg(DISTINCT p.key) FILTER (WHERE strpos(p.key, $3::text) > 0 OR p.key = $4::text), '{}'),
       coalesce((SELECT l.policy FROM page AS l ORDER BY l.policy DESC, l.key DESC LIMIT 1), ''),
       coalesce((SELECT l.key FROM page AS l ORDER BY l.policy DESC, l.key DESC LIMIT 1), '')
FROM page AS p`

// hasPart reports whether a key that limiter.JoinKey made has a part.
func hasPart(key, part string) bool {
	var one strings.Builder
	for n := 0; n < len(key); n++ {
		switch c := key[n]; {
		case c == ':':
			if one.String() == part {
				return true
			}
			one.Reset()
		case c == '\\' && n+1 < len(key):
			n++
			one.WriteByte(key[n])
		default:
			one.WriteByte(c)
		}
	}
	return one.String() == part
}

// FirstParts counts up to most rows of keys that limiter.JoinKey made with part before
// others. It reads only these.
func (i *Inspector) FirstParts(ctx context.Context, part string, f Filter, most int) (rows int, err error) {
	m := Keys{Text: limiter.JoinKey(part) + ":", Prefix: true}
	if m.check() != nil {
		return 0, nil // a longer key does not exist
	}
	err = i.read(ctx, func(tx reader) error {
		by, err := newMatcher(ctx, tx, m)
		if err != nil {
			return err
		}
		var p params
		sql := rowsOf(f, by, most, &p) + "\nUNION\n" + tracesOf(f, by, most, &p)
		return tx.QueryRow(ctx, "SELECT count(*) FROM ("+sql+"\nLIMIT "+p.add(int64(most))+"::bigint) AS f", p...).Scan(&rows)
	})
	return rows, err
}
