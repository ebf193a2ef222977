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
	"github.com/pglimit/pglimit/internal/store"
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
	conn      *pgxpool.Conn
	described *pgconn.StatementDescription
	seen      *session
	begun     *Answer // nil, unless the statement was sent by a caller that has left
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
	var pooled *pgxpool.Conn
	own := false
	switch tx := tx.(type) {
	case *Answer:
		return Ready{b: b, seen: sessionOf(tx.Conn.Conn()), begun: tx}, nil
	case ownConn:
		pooled, own = tx.Conn, true
	case *pgxpool.Conn:
		pooled = tx
	default:
		return Ready{}, nil
	}
	conn := pooled.Conn()
	seen := sessionOf(conn)
	switch i := slices.Index(seen.suspect, b); {
	case !seen.binary:
		return Ready{}, nil
	case own && (i >= 0 || !slices.Contains(seen.prepared, b)):
		return Ready{}, store.ErrElsewhere
	case i >= 0:
		if err := conn.Deallocate(ctx, b.name); err != nil {
			return Ready{}, err
		}
		seen.suspect = slices.Delete(seen.suspect, i, i+1)
	}
	described, err := conn.Prepare(ctx, b.name, b.sql)
	if err != nil || !b.Fits(described) {
		return Ready{}, err
	}
	if !slices.Contains(seen.prepared, b) {
		seen.prepared = append(seen.prepared, b)
	}
	return Ready{b: b, conn: pooled, described: described, seen: seen}, nil
}

// OK reports whether r is not the zero Ready.
func (r Ready) OK() bool { return r.b != nil }

// session is what is known of one connection.
type session struct {
	binary   bool      // it may send a Binary
	prepared []*Binary // those that need no round trip before their next use
	// suspect lists the statements that may be missing or stale on the server, although
	// pgx has them as prepared. They are prepared again before their next use.
	suspect []*Binary
	answer  Answer // of the statement in flight
}

const sessionKey = "github.com/pglimit/pglimit"

func sessionOf(conn *pgx.Conn) *session {
	data := conn.PgConn().CustomData()
	if seen, ok := data[sessionKey].(*session); ok {
		return seen
	}
	seen := &session{binary: sendsBinary(conn.Config())}
	data[sessionKey] = seen
	return seen
}

// sendsBinary reports whether connections of a configuration may send a Binary.
func sendsBinary(c *pgx.ConnConfig) bool {
	return c.Tracer == nil && c.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && c.StatementCacheCapacity > 0
}
