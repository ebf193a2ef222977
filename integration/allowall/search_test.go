package allowall

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// sets are histories of several requests at once of mixed algorithms. They have duplicates,
// requests above the burst, blocks, contradicting plans and single requests in between.
var sets = search.Draw{Equal: true, Names: 4, Operations: strings.Repeat("all ", 12) + "once reserve allow charge block unblock reset undo override"}

// TestAllowAllDecidesAsMemory: AllowAll decides as a limiter in memory, over database/sql,
// where requests cannot be pipelined, and in the caller's transaction too, and where it records marks.
func TestAllowAllDecidesAsMemory(t *testing.T) {
	t.Parallel()
	guessed := newGuesses()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address, guessed.On)
	dbs := []*sql.DB{testworld.ConnectSQL(t, testworld.SQLDrivers[0], address), testworld.ConnectSQL(t, testworld.SQLDrivers[1], address)}
	t.Cleanup(func() {
		if right, wrong := guessed.right.Load(), guessed.wrong.Load(); right == 0 || wrong == 0 && !testworld.Citus() { // there few keys share a shard
			t.Errorf("%d guesses were right, %d wrong; the test needs both", right, wrong)
		}
	})
	plain, inside := sets, sets
	plain.Plain, inside.Plain, inside.Operations = true, true, sets.Operations+" all all begin begin commit rollback"
	marked := search.Variants(10, 10*time.Second)
	for i := range marked {
		if marked[i].Algorithm != limiter.LeakyBucketQueue {
			marked[i].Marks = "50%,100%"
		}
	}
	for mode, d := range map[string]search.Draw{"outside": sets, "outside with marks": plain, "inside": inside, "inside with marks": inside} {
		bases := search.Variants(10, 10*time.Second)
		if strings.HasSuffix(mode, "marks") {
			bases = marked
		}
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			testworld.Search(t, d, 12, func(t *testing.T) func(*search.History) search.Subject {
				return func(*search.History) search.Subject {
					s, config := testworld.NewSubject(t)
					s.Ways, s.Begin = search.By(testworld.NewLimiter(t, pool, config), testworld.NewSQL(t, dbs[0], config), testworld.NewSQL(t, dbs[1], config)), pool.Begin
					if d.Plain { // a denial in a transaction, or under marks, brings rows up to date
						s.Alike = search.Rounded
					}
					return s
				}
			}, bases...)
		})
	}
}
