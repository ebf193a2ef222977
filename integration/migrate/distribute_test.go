package migrate

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/cluster"
	"github.com/pglimit/pglimit/internal/shards"
)

// TestDistributeRefused: without Citus there is an error with the next step.
func TestDistributeRefused(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	_, err := cluster.Distribute(t.Context(), pool, cluster.Distribution{Shards: 4})
	if !errors.Is(err, cluster.ErrCluster) || !strings.Contains(err.Error(), "CREATE EXTENSION citus") {
		t.Errorf("without Citus: %v", err)
	}
	for _, n := range []int{-1, 1025} {
		if _, err := cluster.Distribute(t.Context(), pool, cluster.Distribution{Shards: n}); !errors.Is(err, cluster.ErrCluster) || !strings.Contains(err.Error(), fmt.Sprintf("shards is %d", n)) {
			t.Errorf("%d shards: %v", n, err)
		}
	}
	if m, err := shards.Read(t.Context(), pool); m != nil || err != nil {
		t.Errorf("shards without Citus: %v, %v", m, err)
	}
}

// TestHash: keys hash as the server hashes them.
func TestHash(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	var texts []string
	for n := range 200 {
		texts = append(texts, strings.Repeat("k", n%30)+fmt.Sprint(n), strings.Repeat("ü😀", n%9)+fmt.Sprint(n))
	}
	for i, hash := range testworld.Value[[]int32](t, pool, `SELECT array_agg(hashtext(a.text) ORDER BY a.n) FROM unnest($1::text[]) WITH ORDINALITY AS a (text, n)`, texts) {
		if got := shards.Hash(texts[i]); got != hash {
			t.Errorf("Hash(%q) = %d, want %d", texts[i], got, hash)
		}
	}
}
