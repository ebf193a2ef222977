package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
)

const (
	lostBeats = 3                // heartbeats that a program missed if it is silent
	loadsIn   = 30 * time.Second // a change of the policies: within a second, unless the program cannot read them
)

// following is the version of the policies, and for how long it has been that.
const following = `SELECT v.version, coalesce(extract(epoch FROM clock_timestamp() - (SELECT max(h.changed_at) FROM pglimit_policy_history AS h)), 1e9)::float8
	FROM pglimit_policy_version AS v`

func checkPrograms(ctx context.Context, p *patient) (Check, error) {
	var all []db.ProgramsRow
	var version int64
	var since float64
	err := p.atHome(ctx, func(tx db.DBTX) (err error) {
		if err := tx.QueryRow(ctx, following).Scan(&version, &since); err != nil {
			return err
		}
		all, err = db.New().Programs(ctx, tx)
		return err
	})
	if err != nil {
		return Check{}, err
	}
	t, _ := p.has("pglimit_program")
	return judgePrograms(all, version, time.Duration(since*float64(time.Second)), t.quoted), nil
}

// judgePrograms judges the programs that follow the policies, whose version is that of the
// database since a time.
func judgePrograms(all []db.ProgramsRow, version int64, since time.Duration, table string) Check {
	const shown = 100 // details
	c := Check{Message: fmt.Sprintf("all of %s that follow the policies have version %d", printable.Count(len(all), "program"), version)}
	if len(all) > 0 && all[0].More {
		c.Message = "of the programs seen last, " + c.Message
	}
	for _, r := range all {
		seen := microseconds(r.SeenUs)
		who := fmt.Sprintf("%s on %s, pid %d", r.Name, r.Host, r.Pid)
		next := func(o db.ProgramsRow) bool { return o.Name == r.Name && o.Host == r.Host && o.StartedAtUs > r.SeenAtUs }
		switch {
		case len(c.Details) == shown:
			continue
		case seen.Seconds() > lostBeats*r.HeartbeatS && !slices.ContainsFunc(all, next):
			c = worse(c, Check{Verdict: Warn, Details: []string{fmt.Sprintf("%s, was seen %s ago, and every %s before", who, duration.Format(seen.Round(time.Second)), duration.Format(time.Duration(r.HeartbeatS*float64(time.Second))))},
				Fix:      fmt.Sprintf("DELETE FROM %s WHERE instance = %s", table, literal(r.Instance)),
				NextStep: "if the program still runs, it hangs or cannot write: see its log; the fix forgets one that has ended"})
		case seen.Seconds() > lostBeats*r.HeartbeatS:
		case r.PoliciesVersion != version && since > loadsIn:
			c = worse(c, Check{Verdict: Warn, Details: []string{fmt.Sprintf("%s, decides by version %d of the policies, which are at version %d", who, r.PoliciesVersion, version)},
				NextStep: "see the program's log: it cannot read the policies; start it again if it says nothing"})
		}
	}
	if c.Verdict != OK {
		c.Message = fmt.Sprintf("%d of %d programs do not follow the policies: %s", len(c.Details), len(all), c.Details[0])
		if len(c.Details) == shown {
			c.Message = "at least " + c.Message
		}
	}
	return c
}
