package exec

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/sending"
)

// Binary is a statement whose caller writes the parameters and reads the rows in
// PostgreSQL's binary format. It is sent over pgconn: pgx looks up a codec for each value
// and allocates for each.
type Binary struct {
	sql, name       string
	params, columns []uint32 // the OIDs of their types
}

// NewBinary returns the statement sql. Its caller writes parameters and reads columns of the
// types params and columns.
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

// Answer is the answer to a Binary as far as it was read, and a db.DBTX by which another
// goroutine can go on reading it. pgconn's ResultReader closes the connection when a read
// ends early; this leaves it as it is.
type Answer struct {
	*pgxpool.Conn
	pg  *pgconn.PgConn
	ctx context.Context
	// context is ctx's, until the last read; then, or if ctx has none, nil.
	context *sending.Context
	stop    func() // ends what is done instead if it has none

	own  bool     // its caller may leave
	left bool     // its caller has left
	done bool     // nothing more is to be read
	err  error    // of the statement
	row  [][]byte // read last
	kept []byte   // the row's values, if its caller may leave

	release func(error) error // of the connection, while the Context keeps the Answer
}

// keptBy returns the Answer that c keeps, or nil.
func keptBy(c *sending.Context) *Answer {
	if c == nil {
		return nil
	}
	a, _ := c.Rest.(*Answer)
	return a
}

// inBinary is the format of all parameters, and of all columns.
var inBinary = []int16{pgx.BinaryFormatCode}

// Query sends the statement. params may be used again when it returns. The caller passes
// the answer to Close, also after an error.
func (r Ready) Query(ctx context.Context, params [][]byte) *Answer {
	if r.begun != nil {
		r.begun.left, r.begun.done = false, false
		r.begun.watch(ctx)
		return r.begun
	}
	a := &r.seen.answer
	*a = Answer{Conn: r.conn, pg: r.conn.Conn().PgConn(), own: sending.IsOwn(ctx), kept: a.kept[:0]}
	if err := ctx.Err(); err != nil { // nothing is sent
		a.err, a.done = err, true
		return a
	}
	a.watch(ctx)
	f := a.pg.Frontend()
	f.SendBind(&pgproto3.Bind{PreparedStatement: r.described.Name, ParameterFormatCodes: inBinary, Parameters: params, ResultFormatCodes: inBinary})
	f.SendExecute(&pgproto3.Execute{})
	f.SendSync(&pgproto3.Sync{})
	if err := f.Flush(); err != nil {
		a.close(err)
	}
	return a
}

// watch makes reads end with ctx, or before it if the caller leaves.
func (a *Answer) watch(ctx context.Context) {
	if a.ctx, a.context = ctx, sending.Of(ctx); a.context != nil {
		a.context.Watch(a.pg.Conn())
		return
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = a.pg.Conn().SetDeadline(sending.Past)
		close(ended)
	})
	a.stop = func() {
		if !stop() {
			<-ended
			_ = a.pg.Conn().SetDeadline(time.Time{})
		}
	}
}

// unwatch ends watch, and reports whether the caller has left.
func (a *Answer) unwatch() (left bool) {
	if a.context != nil {
		left = a.context.Unwatch()
	} else if a.stop != nil {
		a.stop()
	}
	a.context, a.stop = nil, nil
	return left
}

// Next reads the next row, and reports whether there is one. If its caller may leave, it
// first reads all of the answer, which has one row.
func (a *Answer) Next() bool {
	for !a.done {
		msg, err := a.pg.ReceiveMessage(context.Background())
		if err != nil {
			a.interrupted(err)
			return false
		}
		switch msg := msg.(type) {
		case *pgproto3.DataRow:
			if a.row = msg.Values; !a.own {
				return true
			}
			a.keep()
		case *pgproto3.ErrorResponse:
			a.fail(pgconn.ErrorResponseToPgError(msg))
		case *pgproto3.ReadyForQuery:
			if a.done = true; a.own {
				return a.row != nil && a.err == nil
			}
		}
	}
	return false
}

// Row returns the row's values, until the next Next.
func (a *Answer) Row() [][]byte { return a.row }

// keep makes a copy of the row: what is read after it overwrites it.
func (a *Answer) keep() {
	for i, value := range a.row {
		if value != nil {
			start := len(a.kept)
			a.kept = append(a.kept, value...)
			a.row[i] = a.kept[start:len(a.kept):len(a.kept)]
		}
	}
}

// fail sets the answer's error; the first one stays.
func (a *Answer) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

// interrupted is called after a read that failed.
func (a *Answer) interrupted(err error) {
	a.done = true
	if !pgconn.Timeout(err) { // pgconn has closed the connection
		a.fail(err)
		return
	}
	context := a.context
	if a.left = a.unwatch(); a.left {
		context.Rest = a
		return
	}
	a.close(err)
}

// close closes the connection because of err. pgconn has no method that also cancels the
// statement, but does that after a read or write that fails.
func (a *Answer) close(err error) {
	if a.ctx.Err() != nil {
		err = fmt.Errorf("timeout: %w", a.ctx.Err())
	}
	a.fail(err)
	a.done = true
	_ = a.pg.Conn().SetDeadline(sending.Past)
	_ = a.pg.Exec(context.Background(), "").Close()
}

// Close reads the rest of the rows and returns the statement's error. Rows that were read
// before an error are void.
func (r Ready) Close(a *Answer) error {
	for a.Next() {
	}
	a.unwatch()
	switch {
	case a.left:
		return store.ErrElsewhere
	case a.err != nil && !conflict(a.err) && !IsDataError(a.err) && !slices.Contains(r.seen.suspect, r.b):
		r.seen.suspect = append(r.seen.suspect, r.b)
	}
	return a.err
}

// ownConn is a connection on the goroutine of a caller that may leave. Only a Binary can be
// sent on it.
type ownConn struct{ *pgxpool.Conn }

func (ownConn) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, store.ErrElsewhere
}

func (ownConn) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return nil, store.ErrElsewhere
}

func (ownConn) QueryRow(context.Context, string, ...any) pgx.Row { return noRow{store.ErrElsewhere} }

func (ownConn) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults {
	panic("pglimit: a batch on a caller's goroutine")
}
