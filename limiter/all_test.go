package limiter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/store/memory"
)

// TestMemoryAllowAllIsAtomic: the units granted to concurrent AllowAlls over keys in
// random order equal the keys' levels in the end, and no key is above its limit.
func TestMemoryAllowAllIsAtomic(t *testing.T) {
	t.Parallel()
	l := NewMemory(nil)
	ctx := context.Background()
	var policies []Policy
	for _, a := range Algorithms() {
		policies = append(policies, Policy{Name: string(a), Algorithm: a, Limit: 100, Period: 100_000 * time.Hour})
	}
	var mu sync.Mutex
	granted := map[Request]float64{}
	denied := 0
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for range 200 {
				requests := make([]Request, 1+rand.IntN(4))
				for i := range requests {
					requests[i] = policies[rand.IntN(len(policies))].Request(fmt.Sprint(rand.IntN(10)), float64(1+rand.IntN(3)))
				}
				all, err := l.AllowAll(ctx, requests...)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, request := range requests {
					if all.Allowed {
						granted[Request{Policy: request.Policy, Key: request.Key}] += request.Cost
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
	for request, want := range granted {
		r, err := l.Check(ctx, request.Policy, request.Key, 0)
		if err != nil || r.Level > want+1e-3 || r.Level < want-1e-3 || want > 100 {
			t.Errorf("%s %s: %+v, %v; granted %v", request.Policy.Algorithm, request.Key, r, err, want)
		}
	}
	if denied == 0 {
		t.Error("nothing was denied")
	}
	tx := l.InTx(nil)
	if _, err := tx.AllowAll(ctx, policies[0].Request("a", 1), policies[1].Request("b", 1)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("InTx: %v", err)
	}
}

// TestMemoryAllowAllKeepsNoDeniedKeys: denied requests of an attacker store nothing.
func TestMemoryAllowAllKeepsNoDeniedKeys(t *testing.T) {
	t.Parallel()
	m := memory.New()
	l := newInMemory(m, nil)
	p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 1, Period: time.Hour}
	all, err := l.AllowAll(context.Background(), p.Request("a", 1), p.Request("b", 2))
	if err != nil || all.Allowed {
		t.Fatalf("got %+v, %v", all, err)
	}
	if n := m.Len(); n != 0 {
		t.Errorf("%d keys are kept", n)
	}
}

// TestResultsJSON: denied_by is null if no request denied.
func TestResultsJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		all  Results
		want string
	}{
		{Results{Allowed: true, DeniedBy: -1}, `{"allowed":true,"denied_by":null,"per_request":[]}`},
		{Results{DeniedBy: 0, PerRequest: []Result{{Limit: 5}}}, `{"allowed":false,"denied_by":0,"per_request":[{"allowed":false,"granted":0,"limit":5,`},
	} {
		if got, err := json.Marshal(c.all); err != nil || !strings.HasPrefix(string(got), c.want) {
			t.Errorf("got %s, %v, want %s", got, err, c.want)
		}
	}
}
