package limiter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
)

// TestMemoryAllowAllIsAtomic: what is granted at once over keys in random order
// is what the keys hold in the end, and none holds more than its limit.
func TestMemoryAllowAllIsAtomic(t *testing.T) {
	t.Parallel()
	l := NewMemory(nil)
	ctx := context.Background()
	var policies []Policy
	for _, a := range Algorithms() {
		policies = append(policies, Policy{Name: "p", Algorithm: a, Limit: 100, Period: 100_000 * time.Hour})
	}
	var mu sync.Mutex
	granted := map[Ask]float64{}
	denied := 0
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for range 200 {
				asks := make([]Ask, 1+rand.IntN(4))
				for i := range asks {
					asks[i] = policies[rand.IntN(len(policies))].Ask(fmt.Sprint(rand.IntN(10)), float64(1+rand.IntN(3)))
				}
				all, err := l.AllowAll(ctx, asks...)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, ask := range asks {
					if all.Allowed {
						granted[Ask{Policy: ask.Policy, Key: ask.Key}] += ask.Cost
					}
				}
				if !all.Allowed {
					denied++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for ask, want := range granted {
		r, err := l.Check(ctx, ask.Policy, ask.Key, 0)
		if err != nil || r.Level > want+1e-3 || r.Level < want-1e-3 || want > 100 {
			t.Errorf("%s %s: %+v, %v; granted %v", ask.Policy.Algorithm, ask.Key, r, err, want)
		}
	}
	if denied == 0 {
		t.Error("nothing was denied")
	}
	tx := l.InTx(nil)
	if _, err := tx.AllowAll(ctx, policies[0].Ask("a", 1), policies[1].Ask("b", 1)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("InTx: %v", err)
	}
}

// TestMemoryAllowAllKeepsNoDeniedKeys: an attacker who is denied leaves nothing.
func TestMemoryAllowAllKeepsNoDeniedKeys(t *testing.T) {
	t.Parallel()
	l := NewMemory(nil)
	p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 1, Period: time.Hour}
	all, err := l.AllowAll(context.Background(), p.Ask("a", 1), p.Ask("b", 2))
	if err != nil || all.Allowed {
		t.Fatalf("got %+v, %v", all, err)
	}
	m := l.engine.store.(*memory)
	for i := range m.shards {
		if n := len(m.shards[i].entries); n != 0 {
			t.Errorf("%d keys are kept", n)
		}
	}
}

// TestResultsJSON: null stands for no binding ask.
func TestResultsJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		all  Results
		want string
	}{
		{Results{Allowed: true, Binding: -1}, `{"allowed":true,"binding":null,"each":[]}`},
		{Results{Binding: 0, Each: []Result{{Limit: 5}}}, `{"allowed":false,"binding":0,"each":[{"allowed":false,"granted":0,"limit":5,`},
	} {
		if got, err := json.Marshal(c.all); err != nil || !strings.HasPrefix(string(got), c.want) {
			t.Errorf("got %s, %v, want %s", got, err, c.want)
		}
	}
}

// script is a runner over a connection that can send one statement at a time.
// It notes the statements by their names, those apart that look for expired holds,
// and answers Takes with granted.
type script struct {
	granted map[string]float64 // by key
	sent    []string
}

func (s *script) do(_ context.Context, f func(db.DBTX) error) error { return f(s) }

func (s *script) within(_ context.Context, f func(db.DBTX) error) error {
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

func (s *script) Query(context.Context, string, ...any) (pgx.Rows, error) { return nil, errRecorded }

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

// TestAllowAllOneByOne: over a connection without pipelining the statements are
// the same, in the same order, and blocks come in a transaction after the other.
func TestAllowAllOneByOne(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := Policy{Name: "p", Algorithm: GCRA, Limit: 10, Period: time.Hour, BlockFor: time.Hour}
	first := Policy{Name: "q", Algorithm: TokenBucket, Limit: 10, Period: time.Hour}
	logs := Policy{Name: "p", Algorithm: SlidingWindowLog, Limit: 10, Period: time.Hour}
	for _, c := range []struct {
		tx      bool
		granted map[string]float64
		want    string
	}{
		{false, map[string]float64{"a": 1, "b": 1, "c": 1}, "begin TokenBucketTake a GCRATake b SlidingWindowLogTake c commit"},
		{false, map[string]float64{"a": 1, "b": 0, "c": 1}, "begin TokenBucketTake a GCRATake b SlidingWindowLogTake c rollback begin GCRABlock b commit TokenBucketGet a SlidingWindowLogGet c"},
		{false, map[string]float64{"a": 1, "b": -1, "c": 0}, "begin TokenBucketTake a GCRATake b SlidingWindowLogTake c rollback TokenBucketGet a"},
		{true, map[string]float64{"a": -1, "b": 0, "c": 0}, "begin TokenBucketTake a GCRATake b SlidingWindowLogTake c commit"},
	} {
		s := &script{granted: c.granted}
		l := newLimiter(nil, postgres{runner: s, tx: c.tx})
		l.engine.inTx = c.tx
		l.engine.holds.until.Store(math.MaxInt64) // no hold has expired
		all, err := l.AllowAll(ctx, logs.Ask("c", 1), p.Ask("b", 1), first.Ask("a", 1))
		if got := strings.Join(s.sent, " "); got != c.want || err != nil {
			t.Errorf("%+v, %v: sent\n%s, want\n%s", all, err, got, c.want)
		}
	}
}
