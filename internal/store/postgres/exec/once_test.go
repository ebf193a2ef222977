package exec

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
)

// oneByOne is a connection without a pipeline that counts statements.
type oneByOne struct{ sent int }

func (o *oneByOne) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	o.sent++
	return pgconn.CommandTag{}, nil
}
func (o *oneByOne) Query(context.Context, string, ...any) (pgx.Rows, error) { panic("not used") }
func (o *oneByOne) QueryRow(context.Context, string, ...any) pgx.Row        { panic("not used") }

// TestAtOnceNeedsAPipeline: without one, several statements would be several transactions.
// So none is sent, and that is no failure of the database.
func TestAtOnceNeedsAPipeline(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	statement := command(ctx, "statement")
	for name, wrap := range map[string]func(*oneByOne) db.DBTX{
		"database/sql": func(o *oneByOne) db.DBTX { return o },
		"uncached":     func(o *oneByOne) db.DBTX { return uncached{o} },
	} {
		var conn oneByOne
		if err := AtOnce(ctx, wrap(&conn), []Call{statement, statement}); err != ErrOneByOne || conn.sent != 0 {
			t.Errorf("%s: %v, and %d of two statements were sent", name, err, conn.sent)
		}
		if err := AtOnce(ctx, wrap(&conn), []Call{statement}); err != nil || conn.sent != 1 {
			t.Errorf("%s: one statement: %v, %d sent", name, err, conn.sent)
		}
	}
	if !answered(ErrOneByOne) {
		t.Error("it counts as a failure")
	}
}

// TestIsNotAll: only the error of a TakeAll is a wrong guess, in any language.
func TestIsNotAll(t *testing.T) {
	t.Parallel()
	text := notAll + ", since a key granted 0"
	for _, c := range []struct {
		code, message string
		want          bool
	}{
		{"22P02", `invalid input syntax for type double precision: "` + text + `"`, true},
		{"22P02", "ungültige Eingabesyntax für Typ double precision: »" + text + "«", true},
		{"22P02", `invalid input syntax for type double precision: "x"`, false},
		{"22021", text, false},
	} {
		err := error(&pgconn.PgError{Code: c.code, Message: c.message})
		if got := IsNotAll(fmt.Errorf("wrapped: %w", err)); got != c.want {
			t.Errorf("%v: %v", err, got)
		}
	}
	if IsNotAll(nil) || IsNotAll(errors.New(text)) {
		t.Error("an error without SQLSTATE is one")
	}
}
