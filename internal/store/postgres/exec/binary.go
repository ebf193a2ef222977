package exec

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
)

// Binary is a statement whose caller writes the parameters and reads the rows in
// PostgreSQL's binary format. It is sent over pgconn: pgx looks up a codec for each value
// and allocates for each.
type Binary struct {
	sql, name       string
	params, columns []uint32 // the OIDs of their types
}

// NewBinary returns the statement of that text. Its caller writes parameters and reads
// columns of these types.
func NewBinary(sql string, params, columns []uint32) *Binary {
	// The name has a digest, as pgx's names have: behind a pooler another version of this
	// program may have prepared another text.
	digest := sha256.Sum256([]byte(sql))
	return &Binary{sql: sql, name: "pglimit_" + hex.EncodeToString(digest[:24]), params: params, columns: columns}
}

// Fits reports whether the server describes the statement with the types that the caller
// writes and reads.
func (b *Binary) Fits(d *pgconn.StatementDescription) bool {
	return slices.Equal(d.ParamOIDs, b.params) &&
		slices.EqualFunc(d.Fields, b.columns, func(f pgconn.FieldDescription, oid uint32) bool { return f.DataTypeOID == oid })
}

// Name returns the statement's name on a connection.
func (b *Binary) Name() string { return b.name }

// Text returns the statement's text.
func (b *Binary) Text() string { return b.sql }

// Ready is a Binary that is prepared on a connection. The zero Ready is none.
type Ready struct {
	b         *Binary
	conn      *pgx.Conn
	described *pgconn.StatementDescription
	seen      *session
}

// Prepare prepares b unless it is prepared. It returns the zero Ready if tx is no
// connection of a pgx pool that may send b so. Then the caller sends b's text over tx:
//
//   - in transactions and pipelines, and over database/sql
//   - without prepared statements, because a pooler loses them
//   - if the pool has a tracer, which sees the statements that pgx sends
//   - if the pool's statements are executed in another mode than pgx's default
//   - if the types of the server's parameters or columns are others
func (b *Binary) Prepare(ctx context.Context, tx db.DBTX) (Ready, error) {
	pooled, ok := tx.(*pgxpool.Conn)
	if !ok {
		return Ready{}, nil
	}
	conn := pooled.Conn()
	seen := sessionOf(conn)
	if !seen.binary {
		return Ready{}, nil
	}
	if i := slices.Index(seen.suspect, b); i >= 0 {
		if err := conn.Deallocate(ctx, b.name); err != nil {
			return Ready{}, err
		}
		seen.suspect = slices.Delete(seen.suspect, i, i+1)
	}
	described, err := conn.Prepare(ctx, b.name, b.sql)
	if err != nil || !b.Fits(described) {
		return Ready{}, err
	}
	return Ready{b, conn, described, seen}, nil
}

// OK reports whether r is not the zero Ready.
func (r Ready) OK() bool { return r.b != nil }

// inBinary is the format of all parameters, and of all columns.
var inBinary = []int16{pgx.BinaryFormatCode}

// Query sends the statement. params may be used again when it returns. The caller passes
// the rows to Close, also after an error.
func (r Ready) Query(ctx context.Context, params [][]byte) *pgconn.ResultReader {
	return r.conn.PgConn().ExecStatement(ctx, r.described, params, inBinary, inBinary)
}

// Close reads the rest of the rows and returns the statement's error. Rows that were read
// before an error are void.
func (r Ready) Close(rows *pgconn.ResultReader) error {
	_, err := rows.Close()
	if err != nil && !conflict(err) && !IsDataError(err) && !slices.Contains(r.seen.suspect, r.b) {
		r.seen.suspect = append(r.seen.suspect, r.b)
	}
	return err
}

// session is what is known of one connection.
type session struct {
	binary bool // it may send a Binary
	// suspect lists the statements that may be missing or stale on the server, although
	// pgx has them as prepared. They are prepared again before their next use.
	suspect []*Binary
}

const sessionKey = "github.com/pglimit/pglimit"

func sessionOf(conn *pgx.Conn) *session {
	data := conn.PgConn().CustomData()
	if seen, ok := data[sessionKey].(*session); ok {
		return seen
	}
	c := conn.Config()
	seen := &session{binary: c.Tracer == nil && c.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && c.StatementCacheCapacity > 0}
	data[sessionKey] = seen
	return seen
}
