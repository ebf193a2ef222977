package statement

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
)

// TestStatementUnknownFields: a generated field that is not described is found before
// anything is sent.
func TestStatementUnknownFields(t *testing.T) {
	t.Parallel()
	type none struct{}
	for name, describe := range map[string]func(){
		"unknown parameter":         func() { one(sends[struct{ Unknown string }, none])() },
		"parameter of another type": func() { one(sends[struct{ Cost int64 }, none])() },
		"unknown column":            func() { one(sends[none, struct{ Unknown string }])() },
		"column of another type":    func() { one(sends[none, struct{ Level int64 }])() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error(name)
				}
			}()
			describe()
		}()
	}
	one(sends[struct{ Cost float64 }, struct{ Level float64 }])()
}

// sends is a generated function.
func sends[P, R any](ctx context.Context, tx db.DBTX, _ P) (row R, err error) {
	_, err = tx.Exec(ctx, "")
	return row, err
}

// verbs are the names of the kinds' statements.
var verbs = [...]string{
	store.Take: "Take", store.Reserve: "Reserve", store.Charge: "Charge", store.Refund: "Refund", store.Undo: "Undo", store.Settle: "Settle",
	store.Get: "Get", store.GetUsage: "Usage", store.Block: "Block", store.Unblock: "Unblock", store.Reset: "Reset", store.Leave: "Leave",
	store.Present: "Present", store.Insert: "Insert", store.Grant: "Grant",
}

// TestStatementsOfTable: each algorithm sends its own statements, and each verb its own.
func TestStatementsOfTable(t *testing.T) {
	t.Parallel()
	for a := range tables {
		table := Of(a)
		sent := map[string]lazy{"TakeMany": table.takeMany, "TakeAll": table.takeAll, "Locked": table.locked}
		for kind, s := range table.kinds {
			sent[verbs[kind]] = s
		}
		for kind, s := range table.calendar {
			sent["Calendar"+verbs[kind]] = s
		}
		prefix := ""
		for verb, s := range sent {
			if s == nil {
				continue
			}
			of := strings.Fields(s().text)[2]
			name, ok := strings.CutSuffix(of, verb)
			if prefix == "" {
				prefix = name
			}
			if !ok || name != prefix || !strings.EqualFold(name, strings.ReplaceAll(string(a), "_", "")) {
				t.Errorf("%s sends %s as %s", a, of, verb)
			}
		}
	}
}

// send sends an op of a kind.
func send(ctx context.Context, tx db.DBTX, kind store.Kind, q *store.Query) (*store.Op, error) {
	op := &store.Op{Kind: kind, Query: *q}
	return op, Call{ctx, op}.Send(tx)
}

// taken sends a Take.
func taken(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
	op, err := send(ctx, tx, store.Take, q)
	return op.Outcome, err
}

// kept is a DBTX that keeps the parameters of each statement, as a pipeline does.
type kept struct {
	db.DBTX
	args [][]any
}

func (k *kept) QueryRow(_ context.Context, _ string, args ...any) pgx.Row {
	k.args = append(k.args, args)
	return k
}

func (k *kept) Query(_ context.Context, _ string, args ...any) (pgx.Rows, error) {
	k.args = append(k.args, args)
	return nil, errors.New("not sent")
}

func (k *kept) Exec(_ context.Context, _ string, args ...any) (tag pgconn.CommandTag, err error) {
	k.args = append(k.args, args)
	return tag, err
}

func (*kept) Scan(...any) error { return errors.New("not sent") }

// TestStatementKeepsParams: what a pipeline keeps of one Reserve is still there after
// others have used the same memory.
func TestStatementKeepsParams(t *testing.T) {
	t.Parallel()
	for name := range tables {
		r, k := drawn{rand.New(rand.NewPCG(7, 7))}, new(kept)
		for i := range 5 {
			a := &store.Admission{ID: fmt.Sprint("id", i), Idempotency: fmt.Sprint("idempotency", i)}
			_ = Call{t.Context(), &store.Op{Kind: store.Reserve, Query: *r.query(name, "key"), Admission: a}}.Send(k)
		}
		for i, args := range k.args {
			if !slices.ContainsFunc(args, func(arg any) bool {
				s, ok := arg.(*string)
				return ok && *s == fmt.Sprint("idempotency", i)
			}) {
				t.Errorf("%s: lost the idempotency key of the Reserve %d", name, i)
			}
		}
	}
}

// TestStatementOwnNames: a Charge counts up to the burst, an Unblock has the end of the
// block, and a Locked has a policy for each key.
func TestStatementOwnNames(t *testing.T) {
	t.Parallel()
	for name := range tables {
		table := Of(name)
		r, k := drawn{rand.New(rand.NewPCG(8, 8))}, new(kept)
		q := r.query(name, "key")
		rows := []*store.Row{{Query: q}, {Query: q}}
		_, _ = send(t.Context(), k, store.Charge, q)
		_ = Call{t.Context(), &store.Op{Kind: store.Unblock, Query: *q, Until: 17}}.Send(k)
		_, _ = table.Locked(t.Context(), k, rows)
		if !slices.ContainsFunc(k.args[0], func(a any) bool { return a == q.Burst }) || slices.ContainsFunc(k.args[0], func(a any) bool { return a == q.Capacity }) {
			t.Errorf("%s: a Charge of %+v has %v", name, q.Rules, k.args[0])
		}
		if !slices.ContainsFunc(k.args[1], func(a any) bool { return a == int64(17) }) {
			t.Errorf("%s: an Unblock has %v", name, k.args[1])
		}
		if want := []any{[]string{q.Policy, q.Policy}, []string{"key", "key"}}; !reflect.DeepEqual(k.args[2], want) {
			t.Errorf("%s: a Locked has %v, want %v", name, k.args[2], want)
		}
	}
}
