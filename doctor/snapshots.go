package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/duration"
)

// oldXIDs is the age, in transactions, from which a snapshot without a time is old.
const oldXIDs = 1_000_000

// pin is something that keeps dead rows.
type pin struct {
	Kind  string // session, walsender, prepared or slot
	Name  string // a session's or replica's application, the transaction's or slot's name
	PID   int32  // of a session
	State string // a session's; active or inactive for a slot
	AgeS  float64
	XIDs  int64 // age in transactions
	Mine  bool  // this database's, so that it can be ended here
}

// Sessions in other databases keep no dead rows of these tables. A session without a
// snapshot and without a transaction ID, which is idle in a transaction, keeps none either,
// but it may have locks and a connection.
const pinsOf = `
SELECT CASE WHEN a.backend_type = 'walsender' THEN 'walsender' ELSE 'session' END, coalesce(a.application_name, ''), a.pid, coalesce(a.state, ''),
       coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8,
       GREATEST(coalesce(age(a.backend_xmin), 0), coalesce(age(a.backend_xid), 0))::int8, true
FROM pg_stat_activity AS a
WHERE a.pid <> pg_backend_pid() AND coalesce(a.backend_type, '') <> 'autovacuum worker'
  AND (a.datname = current_database() AND a.xact_start IS NOT NULL OR a.backend_type = 'walsender' AND a.backend_xmin IS NOT NULL)
UNION ALL
SELECT 'prepared', x.gid, 0, 'prepared', extract(epoch FROM clock_timestamp() - x.prepared)::float8, age(x.transaction)::int8, x.database = current_database()
FROM pg_prepared_xacts AS x
UNION ALL
SELECT 'slot', s.slot_name::text, 0, CASE WHEN s.active THEN 'active' ELSE 'inactive' END, 0, age(s.xmin)::int8, true
FROM pg_replication_slots AS s WHERE s.xmin IS NOT NULL
ORDER BY 5 DESC, 6 DESC`

func checkSnapshots(ctx context.Context, p *patient) (Check, error) {
	pins, err := rows[pin](ctx, p, pinsOf)
	if err != nil {
		return Check{}, err
	}
	locks := strings.Split(p.found["locks"].Fix, "; ")
	pins = slices.DeleteFunc(pins, func(s pin) bool { return slices.Contains(locks, judgePin(s, -1).Fix) }) // found already
	c := judgePins(pins, p.config.OldTransaction)
	if c.Verdict == OK && !p.seesAll {
		c = p.hidden(c.Message + " of this role's sessions; those of others are not visible to it")
	}
	return c, nil
}

// judgePins judges what keeps dead rows.
func judgePins(pins []pin, old time.Duration) Check {
	var c Check
	for _, s := range pins {
		c = worse(c, judgePin(s, old))
	}
	c.Message = fmt.Sprintf("no transaction is older than %s", duration.Format(old))
	if c.Verdict != OK {
		c.Message = fmt.Sprintf("%d old transactions keep dead rows, locks or connections: %s", len(c.Details), c.Details[0])
	}
	return c
}

func judgePin(s pin, old time.Duration) (c Check) {
	age := time.Duration(s.AgeS * float64(time.Second))
	const worst = 60 // times old
	switch s.Kind {
	case "session", "prepared":
		switch {
		case age > worst*old:
			c.Verdict = Fail
		case age > old:
			c.Verdict = Warn
		default:
			return Check{}
		}
	default:
		if s.XIDs < oldXIDs {
			return Check{}
		}
		c.Verdict = Warn
	}
	age = age.Round(time.Millisecond)
	switch s.Kind {
	case "session":
		state := "in a state that this role may not see"
		if s.State != "" {
			state = fmt.Sprintf("%s for %s since its transaction began", s.State, duration.Format(age))
		}
		c.Details = []string{fmt.Sprintf("pid %d, application %q, %s", s.PID, s.Name, state)}
		c.Fix = fmt.Sprintf("SELECT pg_terminate_backend(%d)", s.PID)
	case "prepared":
		c.Details = []string{fmt.Sprintf("prepared transaction %q, for %s", s.Name, duration.Format(age))}
		c.Fix = "ROLLBACK PREPARED " + literal(s.Name)
		if !s.Mine {
			c.Fix, c.NextStep = "", "in the database that has it, run "+c.Fix
		}
	case "slot":
		c.Details = []string{fmt.Sprintf("%s replication slot %q is %d transactions behind", s.State, s.Name, s.XIDs)}
		c.Fix, c.NextStep = fmt.Sprintf("SELECT pg_drop_replication_slot(%s)", literal(s.Name)), "or start the slot's replica"
	case "walsender":
		c.Details = []string{fmt.Sprintf("replica %q has a query that began %d transactions ago", s.Name, s.XIDs)}
		c.NextStep = "end the long query on that replica, or set hot_standby_feedback = off there"
	}
	return c
}
