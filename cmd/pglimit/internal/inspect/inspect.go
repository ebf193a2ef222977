// Package inspect finds keys in the database, whatever their policies and algorithms, and
// changes them in bulk: for operators, who know a key and not the policies that count it.
//
// Keys are given and returned as they are stored: as their HMAC if the limiters have a
// KeySecret. See [github.com/pglimit/pglimit/internal/keys].
package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/shards"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// Patience is how long the server works on one question before it gives up.
const Patience = 15 * time.Second

var queries = db.New()

// Inspector asks and changes the database of a pool. It is safe for concurrent use. Its
// errors are those of the limiter's store.
type Inspector struct {
	pool   *pgxpool.Pool
	Hashed bool // the limiters have a KeySecret
}

// New returns an Inspector. It does not close pool.
func New(pool *pgxpool.Pool) *Inspector { return &Inspector{pool: pool} }

// Filter selects rows. A zero field selects all.
type Filter struct {
	Policy    string
	Algorithm algorithm.Name
}

// algorithms lists the algorithms that f selects, in lock order.
func (f Filter) algorithms() []algorithm.Name {
	if f.Algorithm != "" {
		return []algorithm.Name{f.Algorithm.Table()}
	}
	return algorithm.AllTables()
}

// stored is the algorithm in the rows that f selects, or "".
func (f Filter) stored() string { return string(f.Algorithm.Table()) }

// check returns an error for an unknown algorithm: its name becomes part of a statement.
func (f Filter) check() error {
	if f.Algorithm != "" && !slices.Contains(algorithm.All(), f.Algorithm) {
		return store.Invalid("algorithm", store.Quote(string(f.Algorithm)), fmt.Sprintf("is not one of %q", algorithm.All()))
	}
	return nil
}

// table returns the table of an algorithm.
func table(a algorithm.Name) string {
	switch a {
	case algorithm.Attempts:
		return "pglimit_attempt"
	case algorithm.Concurrency:
		return "pglimit_slot"
	}
	return "pglimit_" + string(a.Table())
}

// read runs f in a transaction that only reads, from one snapshot, and for at most
// Patience for each statement.
func (i *Inspector) read(ctx context.Context, f func(reader) error) error {
	err := pgx.BeginTxFunc(ctx, i.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL statement_timeout = %d`, Patience.Milliseconds())) // a short one of the role does not end it
		if err != nil {
			return err
		}
		m, err := shards.Read(ctx, tx)
		if err != nil {
			return err
		}
		return f(reader{tx, m != nil, i.Hashed})
	})
	var answer *pgconn.PgError
	if errors.As(err, &answer) && answer.Code == "57014" && ctx.Err() == nil {
		return fmt.Errorf("%w: there are too many rows to read within %v: select one policy or algorithm, or order by denials: %w", store.ErrUnavailable, Patience, err)
	}
	if err == nil || errors.Is(err, store.ErrInvalid) {
		return err
	}
	return exec.Translate(err, false)
}

// reader is a transaction that reads.
type reader struct {
	pgx.Tx
	// distributed reports whether Citus distributes the tables. It refuses statements that
	// read a table once for each row of another.
	distributed bool
	hashed      bool // as Inspector.Hashed
}

// params collects the parameters of a statement.
type params []any

// add returns the parameter's name in the statement, such as $1.
func (p *params) add(v any) string {
	*p = append(*p, v)
	return fmt.Sprint("$", len(*p))
}
