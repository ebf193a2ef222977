package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// script is a runner over a connection that sends one statement at a time. It records the
// names of the statements and answers Takes from granted.
type script struct {
	granted map[string]float64 // by key
	sent    []string
}

func (s *script) Run(_ context.Context, m exec.Mode, f func(db.DBTX) error) error {
	if m == exec.Statement {
		return f(s)
	}
	s.sent = append(s.sent, "begin")
	err := f(s)
	if err == nil {
		s.sent = append(s.sent, "commit")
	} else {
		s.sent = append(s.sent, "rollback")
	}
	return err
}

func (s *script) note(sql string, args []any) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(sql, "-- name: "), " ")
	if strings.HasPrefix(name, "Holds") {
		return ""
	}
	s.sent = append(s.sent, name)
	i := slices.IndexFunc(args, func(arg any) bool { _, ok := s.granted[fmt.Sprint(arg)]; return ok })
	if i < 0 {
		return ""
	}
	s.sent[len(s.sent)-1] += " " + args[i].(string)
	return args[i].(string)
}

func (s *script) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	s.note(sql, args)
	return pgconn.CommandTag{}, nil
}

func (s *script) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return nil, errors.New("one statement at a time")
}

func (s *script) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	return scriptRow(s.granted[s.note(sql, args)])
}

// scriptRow has granted in its first column and zeros in all others.
type scriptRow float64

func (r scriptRow) Scan(into ...any) error {
	if granted, ok := into[0].(*float64); ok {
		*granted = float64(r)
	}
	return nil
}

// TestTakeAllOneByOne: over a connection without pipelining the statements and their
// order are the same. Blocks are written in a second transaction.
func TestTakeAllOneByOne(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	group := func(a algorithm.Name, key string, blockFor int64) *store.Group {
		g := &store.Group{Query: store.Query{
			Algorithm: a, Policy: "p", Key: key, Units: 1, Cost: 1, Count: 1, Unit: 1, Room: 10,
			Rules: algorithm.Rules{Burst: 10, Capacity: 10, Leak: 1e-9, Tick: 1, Period: 3600e6, BlockFor: blockFor, Lifetime: 3600e6},
		}}
		g.Needs = []float64{1}
		return g
	}
	for _, c := range []struct {
		tx      bool
		granted map[string]float64
		want    string
	}{
		{false, map[string]float64{"a": 1, "b": 1, "c": 1}, "begin TokenBucketTake a FixedWindowTake b SlidingWindowLogTake c commit"},
		{false, map[string]float64{"a": 1, "b": 0, "c": 1}, "begin TokenBucketTake a FixedWindowTake b SlidingWindowLogTake c rollback begin FixedWindowBlock b commit TokenBucketGet a SlidingWindowLogGet c"},
		{false, map[string]float64{"a": 1, "b": -1, "c": 0}, "begin TokenBucketTake a FixedWindowTake b SlidingWindowLogTake c rollback TokenBucketGet a"},
		{true, map[string]float64{"a": -1, "b": 0, "c": 0}, "begin TokenBucketTake a FixedWindowTake b SlidingWindowLogTake c commit"},
	} {
		s := &script{granted: c.granted}
		p := Store{runner: s, tx: c.tx, ahead: new(atomic.Int64)}
		op := &store.Op{Kind: store.TakeAll, Groups: []*store.Group{
			group(algorithm.TokenBucket, "a", 0), group(algorithm.FixedWindow, "b", 3600e6), group(algorithm.SlidingWindowLog, "c", 0),
		}}
		err := p.Do(ctx, op)
		if got := strings.Join(s.sent, " "); got != c.want || err != nil {
			t.Errorf("%v, %v: sent\n%s, want\n%s", op.Allowed, err, got, c.want)
		}
	}
}
