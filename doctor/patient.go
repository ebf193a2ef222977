package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/sqldb"
)

// patient is the database that is checked.
type patient struct {
	config Config
	own    *sql.DB // the caller's connections
	db     *sql.DB // of pgx: the doctor's own, in a mode that works through any pooler
	// size is the most connections that the caller's pool opens, 0 if it has no bound, and
	// opened those that are open.
	size, opened int64
	mode         pgx.QueryExecMode // of the caller's pool of pgx

	settings  map[string]setting
	role      string // as SQL has it, and its name
	roleName  string
	superuser bool
	database  string // quoted
	home      string // the schema of the tables, quoted; empty: there is none
	owner     string // of the tables, quoted, and its oid; empty: there are no tables
	ownerOID  uint32
	owns      bool // the role may do what the owner may
	path      []string
	tables    []table // pglimit's, in home
	version   int     // server_version_num
	standby   bool
	seesAll   bool // may see the statistics of other roles' sessions

	found map[string]Check // by the name of a check that was made
}

// setting is a row of pg_settings.
type setting struct {
	value  string // in the setting's base unit
	source string
}

// table is one of pglimit's tables.
type table struct {
	name    string // without the schema
	quoted  string // with it
	oid     uint32
	kind    string // relpersistence
	options []string
	rows    float64 // by the planner's statistics; negative if unknown
}

// admit connects, and reads what several checks need.
func (p *patient) admit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	err := p.readBasics(ctx, "")
	for try := 0; try < 10 && sqlState(err) == cancelled && ctx.Err() == nil; try++ { // on a busy machine a SET may take long
		err = p.readBasics(ctx, "statement_timeout")
	}
	return err
}

// begin calls read in a read-only transaction in which statements and waits for locks end
// in time, and only pg_catalog's objects are found.
func (p *patient) begin(ctx context.Context, read func(db.DBTX) error) error {
	return p.transaction(ctx, func(tx db.DBTX) error {
		if err := p.bound(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_catalog.set_config('search_path'::text, 'pg_catalog, pg_temp'::text, true)`); err != nil {
			return err
		}
		return read(tx)
	})
}

// atHome is begin with the tables' schema in the search_path, for statements that programs use.
func (p *patient) atHome(ctx context.Context, read func(db.DBTX) error) error {
	return p.begin(ctx, func(tx db.DBTX) error {
		if _, err := tx.Exec(ctx, "SET LOCAL search_path TO pg_catalog, "+p.home+", pg_temp"); err != nil {
			return err
		}
		return read(tx)
	})
}

// bound ends a transaction's statements and waits for locks in time.
func (p *patient) bound(ctx context.Context, tx db.DBTX) error {
	wait := max(1, min(p.config.Timeout, time.Second).Milliseconds())
	_, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL statement_timeout = %d`, p.config.Timeout.Milliseconds())) // which a short one ends least
	if err == nil {
		_, err = tx.Exec(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d`, wait))
	}
	return err
}

// transaction calls read in a read-only transaction.
func (p *patient) transaction(ctx context.Context, read func(db.DBTX) error) error {
	tx, err := p.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	return read(sqldb.Tx(tx))
}

// rows collects the rows of a query.
func rows[R any](ctx context.Context, p *patient, sql string, args ...any) (all []R, err error) {
	err = p.begin(ctx, func(tx db.DBTX) error {
		found, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(found, pgx.RowToStructByPos[R])
		return err
	})
	return all, err
}
