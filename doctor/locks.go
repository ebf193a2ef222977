package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/printable"
)

// A lock is held for long if decisions, whose callers wait for a second by default, time out.
const (
	longHeld = time.Second
	lookGap  = 50 * time.Millisecond
)

// holder is a transaction that has locked rows of a table, or the table, and waits for none.
type holder struct {
	Transaction string // its virtual ID
	Table       uint32
	pin
	Waiting []string // the sessions that wait for it, directly or behind others
}

// Every role may see locks, but not the states of other roles' sessions. A session that waits
// for a row has locked its table too.
const holdersOf = `
WITH RECURSIVE ours AS MATERIALIZED (
    SELECT l.pid, l.virtualtransaction, l.relation, l.mode FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
    WHERE l.locktype = 'relation' AND l.relation = ANY ($1::oid[]) AND d.datname = current_database()
), waits (waiter, blocker) AS MATERIALIZED (
    SELECT w.pid, b.pid FROM (SELECT DISTINCT l.pid FROM pg_locks AS l WHERE NOT l.granted AND l.pid IN (SELECT o.pid FROM ours AS o)) AS w,
        unnest(pg_blocking_pids(w.pid)) AS b (pid)
), behind (waiter, blocker) AS (
    SELECT w.waiter, w.blocker FROM waits AS w UNION SELECT b.waiter, w.blocker FROM behind AS b JOIN waits AS w ON w.waiter = b.blocker
)
SELECT o.virtualtransaction, min(o.relation), CASE WHEN x.gid IS NULL THEN 'session' ELSE 'prepared' END, coalesce(x.gid, a.application_name, ''),
       coalesce(o.pid, 0), coalesce(a.state, ''), coalesce(extract(epoch FROM clock_timestamp() - coalesce(x.prepared, a.xact_start)), 0)::float8, 0::int8, true,
       ARRAY(SELECT format('pid %s, application "%s"', b.waiter, w.application_name) FROM behind AS b JOIN pg_stat_activity AS w ON w.pid = b.waiter
           WHERE b.blocker = coalesce(o.pid, 0) ORDER BY b.waiter)
FROM ours AS o LEFT JOIN pg_stat_activity AS a ON a.pid = o.pid
LEFT JOIN pg_prepared_xacts AS x ON o.pid IS NULL AND o.virtualtransaction = '-1/' || x.transaction
WHERE NOT o.mode IN ('AccessShareLock', 'ShareUpdateExclusiveLock') AND coalesce(o.pid, 0) <> pg_backend_pid()
  AND NOT coalesce(o.pid, 0) IN (SELECT w.waiter FROM waits AS w)
GROUP BY o.virtualtransaction, o.pid, x.gid, x.prepared, a.application_name, a.state, a.xact_start
ORDER BY 7 DESC, 1`

// checkLocks looks for a second whether the same transactions keep locks, since decisions
// wait in turns: none may be waiting at a moment.
func checkLocks(ctx context.Context, p *patient) (Check, error) {
	var held []holder
	for began := time.Now(); ; {
		now, err := rows[holder](ctx, p, holdersOf, p.oids())
		if err != nil {
			return Check{}, err
		}
		if held == nil {
			held = now
		}
		held = still(held, now)
		young := func(h holder) bool { return len(h.Waiting) == 0 || h.AgeS < longHeld.Seconds() }
		if len(held) == 0 || !slices.ContainsFunc(held, young) || time.Since(began) > longHeld {
			return p.judgeLocks(held), nil
		}
		select {
		case <-ctx.Done():
			return Check{}, ctx.Err()
		case <-time.After(lookGap):
		}
	}
}

// still returns those of now that were there before, each with the most sessions that were
// seen to wait.
func still(before, now []holder) (all []holder) {
	for _, h := range now {
		i := slices.IndexFunc(before, func(b holder) bool { return b.Transaction == h.Transaction })
		if i < 0 {
			continue
		}
		if len(before[i].Waiting) > len(h.Waiting) {
			h.Waiting = before[i].Waiting
		}
		all = append(all, h)
	}
	return all
}

// judgeLocks judges transactions that have kept locks for long.
func (p *patient) judgeLocks(held []holder) Check {
	c := Check{Message: "no session waits for what another one has locked for a second"}
	for _, h := range held {
		if len(h.Waiting) == 0 {
			continue
		}
		one := judgePin(h.pin, -1)
		one.Verdict = Warn
		if h.AgeS > p.config.OldTransaction.Seconds() {
			one.Verdict = Fail
		}
		one.Details[0] += fmt.Sprintf(", has locked rows of %s; %s for it: %s", p.named(h.Table).quoted, waits(len(h.Waiting)), strings.Join(h.Waiting, "; "))
		c = worse(c, one)
	}
	if c.Verdict != OK {
		c.Message = c.Details[0]
	}
	return c
}

func waits(n int) string {
	if n == 1 {
		return "1 session waits"
	}
	return printable.Count(n, "session") + " wait"
}
