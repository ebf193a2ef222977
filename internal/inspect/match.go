package inspect

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/store"
)

// Keys selects keys: the one that is Text, or those that begin with Text if Prefix is set.
type Keys struct {
	Text   string
	Prefix bool
}

// maxKey is the longest key in bytes, as the limiter has it.
const maxKey = 1024

// check returns an error for a text that no key has, or that all keys begin with.
func (k Keys) check() error {
	name := "key"
	if k.Prefix {
		name = "prefix"
	}
	switch {
	case k.Text == "":
		return store.Invalid(name, `""`, "is empty")
	case len(k.Text) > maxKey:
		return store.Invalid(name, store.Quote(k.Text), fmt.Sprintf("is longer than %d bytes, and so than all keys", maxKey))
	case strings.IndexByte(k.Text, 0) >= 0 || !utf8.ValidString(k.Text):
		return store.Invalid(name, store.Quote(k.Text), "has a NUL byte or is not valid UTF-8, as no key")
	}
	return nil
}

// after returns the least text above all texts that begin with prefix, in the order of
// bytes, which in UTF-8 is the order of characters. It returns "" if there is none.
func after(prefix string) string {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch {
		case last == 0xD7FF:
			return prefix + "\uE000" // what lies between is not text
		case last < utf8.MaxRune:
			return prefix + string(last+1)
		}
	}
	return ""
}

// matcher renders the condition that a key is among Keys, as a range of an index.
type matcher struct {
	keys  Keys
	upper string // exclusive; "": none
	utf8  bool
}

// newMatcher reads the database's encoding: after is wrong for others.
func newMatcher(ctx context.Context, tx pgx.Tx, k Keys) (m matcher, err error) {
	m.keys = k
	if !k.Prefix {
		return m, nil
	}
	var encoding string
	if err = tx.QueryRow(ctx, `SELECT current_setting('server_encoding'::text)`).Scan(&encoding); err != nil {
		return m, err
	}
	if m.utf8 = encoding == "UTF8"; m.utf8 {
		m.upper = after(k.Text)
	}
	return m, nil
}

// on returns the condition for the column key of a table's alias.
func (m matcher) on(alias string, p *params) string {
	if !m.keys.Prefix {
		return alias + ".key = " + p.add(m.keys.Text) + "::text"
	}
	from := p.add(m.keys.Text) + "::text"
	condition := alias + ".key >= " + from
	switch {
	case m.upper != "":
		condition += " AND " + alias + ".key < " + p.add(m.upper) + "::text"
	case !m.utf8:
		condition += " AND starts_with(" + alias + ".key, " + from + ")"
	}
	return condition
}

// policies returns the FROM item p with the policies of a table, as the filter has them. It
// reads one row for each policy: a loose scan of the primary key, which begins with the
// policy.
func policies(table, policy string, p *params) string {
	if policy != "" {
		return "(SELECT " + p.add(policy) + `::text COLLATE "C" AS policy) AS p`
	}
	return strings.ReplaceAll(`(WITH RECURSIVE one AS (
    (SELECT t.policy FROM TABLE AS t ORDER BY t.policy LIMIT 1)
    UNION ALL
    SELECT (SELECT t.policy FROM TABLE AS t WHERE t.policy > o.policy ORDER BY t.policy LIMIT 1) FROM one AS o WHERE o.policy IS NOT NULL
) SELECT o.policy FROM one AS o WHERE o.policy IS NOT NULL) AS p`, "TABLE", table)
}

// rows returns a SELECT of the rows of a limit table that match: algorithm, policy and key,
// in order, up to limit of each policy.
func rowsOf(f Filter, m matcher, limit int, p *params) string {
	var all []string
	for _, a := range f.algorithms() {
		all = append(all, `SELECT '`+string(a)+`'::text COLLATE "C" AS algorithm, f.policy, f.key
FROM `+policies(table(a), f.Policy, p)+`, LATERAL (
    SELECT t.policy, t.key FROM `+table(a)+` AS t WHERE t.policy = p.policy AND `+m.on("t", p)+`
    ORDER BY t.key LIMIT `+p.add(int64(limit))+`::bigint) AS f`)
	}
	return strings.Join(all, "\nUNION ALL\n")
}
