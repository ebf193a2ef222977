package decide

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// budgets are the expression nodes that a statement's plan may have, without references
// to columns. PostgreSQL compiles all of them each time it runs the statement. Lower a
// budget when a statement needs less.
var budgets = map[string]int{
	"LeakyBucketBlock": 91, "LeakyBucketCharge": 127, "LeakyBucketGet": 28,
	"LeakyBucketLocked": 24, "LeakyBucketRefund": 97, "LeakyBucketReserve": 244,
	"LeakyBucketReset": 55, "LeakyBucketSettle": 313, "LeakyBucketSweep": 93,
	"LeakyBucketTake": 175, "LeakyBucketTakeMany": 247, "LeakyBucketTakeAll": 263, "LeakyBucketUnblock": 54,
	"LeakyBucketUndo": 158, "LeakyBucketUsage": 38,

	"LeakyBucketQueueBlock": 90, "LeakyBucketQueueCharge": 109, "LeakyBucketQueueGet": 25,
	"LeakyBucketQueueLeave": 74, "LeakyBucketQueueLocked": 24, "LeakyBucketQueueReserve": 242,
	"LeakyBucketQueueReset": 55, "LeakyBucketQueueSweep": 91, "LeakyBucketQueueTake": 173,
	"LeakyBucketQueueTakeMany": 248, "LeakyBucketQueueTakeAll": 264, "LeakyBucketQueueUnblock": 54, "LeakyBucketQueueUsage": 35,

	"TokenBucketBlock": 82, "TokenBucketCharge": 97, "TokenBucketGet": 25,
	"TokenBucketLocked": 24, "TokenBucketRefund": 76, "TokenBucketReserve": 213,
	"TokenBucketReset": 55, "TokenBucketSettle": 253, "TokenBucketSweep": 91,
	"TokenBucketTake": 144, "TokenBucketTakeMany": 219, "TokenBucketTakeAll": 235, "TokenBucketUnblock": 54,
	"TokenBucketUndo": 128, "TokenBucketUsage": 35,

	"FixedWindowBlock": 82, "FixedWindowCalendarCharge": 182, "FixedWindowCalendarTake": 239,
	"FixedWindowCharge": 128, "FixedWindowGet": 28, "FixedWindowLocked": 24,
	"FixedWindowRefund": 71, "FixedWindowReserve": 300, "FixedWindowReset": 55,
	"FixedWindowSettle": 218, "FixedWindowSweep": 71, "FixedWindowTake": 185,
	"FixedWindowTakeMany": 311, "FixedWindowTakeAll": 334, "FixedWindowUnblock": 54, "FixedWindowUndo": 89,
	"FixedWindowUsage": 42,

	"SlidingWindowCounterBlock": 84, "SlidingWindowCounterCharge": 233, "SlidingWindowCounterGet": 34,
	"SlidingWindowCounterLocked": 24, "SlidingWindowCounterRefund": 121, "SlidingWindowCounterReserve": 390,
	"SlidingWindowCounterReset": 55, "SlidingWindowCounterSettle": 368, "SlidingWindowCounterSweep": 80,
	"SlidingWindowCounterTake": 314, "SlidingWindowCounterTakeMany": 417, "SlidingWindowCounterTakeAll": 433, "SlidingWindowCounterUnblock": 54,
	"SlidingWindowCounterUndo": 203, "SlidingWindowCounterUsage": 44,

	"SlidingWindowLogBlock": 95, "SlidingWindowLogCharge": 402, "SlidingWindowLogGet": 181,
	"SlidingWindowLogLocked": 24, "SlidingWindowLogRefund": 174, "SlidingWindowLogReserve": 643,
	"SlidingWindowLogReset": 55, "SlidingWindowLogSettle": 438, "SlidingWindowLogSweep": 76,
	"SlidingWindowLogTake": 573, "SlidingWindowLogTakeMany": 784, "SlidingWindowLogTakeAll": 800, "SlidingWindowLogUnblock": 54,
	"SlidingWindowLogUndo": 221, "SlidingWindowLogUsage": 191,

	"FixedWindowAdjust": 68, "LeakyBucketAdjust": 175, "SlidingWindowCounterAdjust": 228, "SlidingWindowLogAdjust": 264, "TokenBucketAdjust": 106,
	"FixedWindowDelete": 45, "LeakyBucketDelete": 45, "LeakyBucketQueueDelete": 45, "SlidingWindowCounterDelete": 45, "SlidingWindowLogDelete": 45, "TokenBucketDelete": 45,

	"FixedWindowInsert": 64, "FixedWindowKeys": 9, "FixedWindowPresent": 88,
	"LeakyBucketInsert": 73, "LeakyBucketKeys": 9, "LeakyBucketPresent": 88,
	"LeakyBucketQueueInsert": 72, "LeakyBucketQueueKeys": 9, "LeakyBucketQueuePresent": 88,
	"SlidingWindowCounterInsert": 66, "SlidingWindowCounterKeys": 9, "SlidingWindowCounterPresent": 88,
	"SlidingWindowLogInsert": 77, "SlidingWindowLogKeys": 7, "SlidingWindowLogPresent": 88,
	"TokenBucketInsert": 64, "TokenBucketKeys": 9, "TokenBucketPresent": 88,

	"BalanceBlock": 103, "BalanceCharge": 253, "BalanceDelete": 45, "BalanceGet": 76, "BalanceGrant": 393,
	"BalanceGrantOnce": 455, "BalanceInsert": 85, "BalanceKeys": 7, "BalanceLocked": 24, "BalancePresent": 88,
	"BalanceRefund": 207, "BalanceReserve": 438, "BalanceReset": 148, "BalanceSweep": 82, "BalanceTake": 344,
	"BalanceTakeAll": 422, "BalanceTakeMany": 406, "BalanceUnblock": 54, "BalanceUndo": 248, "BalanceUsage": 142,
	"FixedWindowChargeMarked": 236, "FixedWindowReserveMarked": 389, "FixedWindowTakeMarked": 313,
	"LeakyBucketChargeMarked": 180, "LeakyBucketReserveMarked": 318, "LeakyBucketTakeMarked": 241,
	"SlidingWindowCounterChargeMarked": 323, "SlidingWindowCounterReserveMarked": 518,
	"SlidingWindowCounterTakeMarked": 435, "SlidingWindowLogChargeMarked": 456, "SlidingWindowLogReserveMarked": 717,
	"SlidingWindowLogTakeMarked": 640, "TokenBucketChargeMarked": 150, "TokenBucketReserveMarked": 287,
	"TokenBucketTakeMarked":   210,
	"LeakyBucketRefundMarked": 120, "LeakyBucketUndoMarked": 181, "TokenBucketRefundMarked": 99,
	"TokenBucketUndoMarked": 151, "FixedWindowRefundMarked": 94, "FixedWindowUndoMarked": 112,
	"SlidingWindowCounterRefundMarked": 144, "SlidingWindowCounterUndoMarked": 226, "SlidingWindowLogRefundMarked": 197,
	"SlidingWindowLogUndoMarked": 244,
	"BalanceChargeMarked":        364, "BalanceGrantMarked": 503, "BalanceRefundMarked": 313, "BalanceReserveMarked": 561, "BalanceTakeMarked": 455, "BalanceUndoMarked": 354,
	"BalanceGrantOnceMarked": 620,
	"BalanceSettle":          578,
}

// computes matches a node of a plan that computes something, in any version's spelling.
var computes = regexp.MustCompile(`\{(CONST|PARAM|FUNCEXPR|OPEXPR|SCALARARRAYOPEXPR|BOOLEXPR|RELABELTYPE|COERCEVIAIO|CASE|CASEEXPR|WHEN|CASEWHEN|CASETESTEXPR|COALESCE|COALESCEEXPR|MINMAX|MINMAXEXPR|NULLTEST|NULLIFEXPR|SUBSCRIPTINGREF|ARRAY|ARRAYEXPR|AGGREF|SUBPLAN|SUBLINK)\b`)

// TestStatementsHaveFewNodes counts the nodes of each statement's generic plan.
func TestStatementsHaveFewNodes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var plan strings.Builder
	pool := testworld.Connect(t, testworld.NewDatabase(t), func(c *pgxpool.Config) {
		c.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { plan.WriteString(n.Detail + n.Message) }
	})
	conn := must.OK(pool.Acquire(ctx))(t)
	defer conn.Release()
	more := 0 // PostgreSQL 13 has more in the plan of an UPDATE
	if testworld.Value[int](t, pool, "SELECT current_setting('server_version_num')::int") < 140000 {
		more = 7
	}
	var lines []string
	for name, text := range testworld.Statements(t) {
		if !oneTable.MatchString(name) {
			continue
		}
		var parameters []string
		text = sqlParameter.ReplaceAllStringFunc(strings.TrimSuffix(strings.TrimSpace(upperCollation(text)), ";"), func(s string) string {
			parameter := sqlParameter.FindStringSubmatch(s)[1]
			if !slices.Contains(parameters, parameter) {
				parameters = append(parameters, parameter)
			}
			return fmt.Sprintf("$%d", 1+slices.Index(parameters, parameter))
		})
		execute := "EXECUTE q"
		if len(parameters) > 0 {
			execute += "(" + strings.Join(slices.Repeat([]string{"NULL"}, len(parameters)), ", ") + ")"
		}
		plan.Reset()
		_, err := conn.Conn().PgConn().Exec(ctx, "SET plan_cache_mode = force_generic_plan; PREPARE q AS "+text+
			"; SET debug_print_plan = on; SET client_min_messages = log; EXPLAIN "+execute+
			"; RESET debug_print_plan; RESET client_min_messages; DEALLOCATE q").ReadAll()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if plan.Len() == 0 {
			t.Fatalf("%s: no plan was printed", name)
		}
		n := 0
		for range computes.FindAllString(plan.String(), -1) {
			n++
		}
		lines = append(lines, fmt.Sprintf("%q: %d,", name, n))
		budget, ok := budgets[name]
		if strings.HasSuffix(name, "Sweep") {
			budget += more
		}
		if !ok || n > budget {
			t.Errorf("%s has %d nodes, want at most %d", name, n, budget)
		}
	}
	slices.Sort(lines)
	t.Log("\n" + strings.Join(lines, "\n"))
}

// upperCollation restores the name of a collation, which testworld.Statements returns in small letters.
func upperCollation(text string) string {
	return strings.ReplaceAll(text, `collate "c"`, `COLLATE "C"`)
}
