package exec

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/detached"
)

// Answer is the answer to a Binary as far as it was read, and a db.DBTX by which another
// goroutine can go on reading it. pgconn's ResultReader closes the connection when a read
// ends early; this leaves it as it is.
type Answer struct {
	*pgxpool.Conn
	pg  *pgconn.PgConn
	ctx context.Context
	// context is ctx's, until the last read; then, or if ctx has none, nil.
	context *detached.Context
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
func keptBy(c *detached.Context) *Answer {
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
	*a = Answer{Conn: r.conn, pg: r.conn.Conn().PgConn(), own: detached.IsOwn(ctx), kept: a.kept[:0]}
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
	if a.ctx, a.context = ctx, detached.Of(ctx); a.context != nil {
		a.context.Watch(a.pg.Conn())
		return
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = a.pg.Conn().SetDeadline(detached.Past)
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
	_ = a.pg.Conn().SetDeadline(detached.Past)
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
