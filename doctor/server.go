package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/pglimit/pglimit/internal/printable"
)

// oldest is the oldest server that pglimit supports.
const oldest = 13

func checkServer(_ context.Context, p *patient) (Check, error) { return judgeVersion(p.version), nil }

// judgeVersion judges a server_version_num.
func judgeVersion(number int) Check {
	name := fmt.Sprintf("PostgreSQL %d.%d", number/10000, number%10000)
	if number/10000 < oldest {
		return Check{Verdict: Fail, Message: name + " is too old", NextStep: fmt.Sprintf("upgrade to PostgreSQL %d or later", oldest)}
	}
	return Check{Message: "the server is " + name}
}

func checkPrimary(_ context.Context, p *patient) (Check, error) {
	return judgePrimary(p.standby, p.settings["default_transaction_read_only"].value == "on", p.alter("default_transaction_read_only", "off")), nil
}

// judgePrimary judges whether decisions can write.
func judgePrimary(standby, readOnly bool, writable Check) Check {
	switch {
	case standby:
		return Check{Verdict: Fail, Message: "this server is a replica in recovery: it refuses every decision",
			NextStep: "connect to the primary: name all hosts in the connection string, with target_session_attrs=read-write"}
	case readOnly:
		if writable.Fix != "" { // the session that runs it is read-only too
			writable.Fix = "BEGIN READ WRITE; " + writable.Fix + "; COMMIT"
		}
		return writable.as(Fail, "default_transaction_read_only is on: every decision is refused")
	}
	return Check{Message: "this server accepts writes"}
}

func checkDurability(_ context.Context, p *patient) (Check, error) {
	c := Check{Message: fmt.Sprintf("fsync and full_page_writes are on, synchronous_commit is %s", p.settings["synchronous_commit"].value)}
	if v := p.settings["synchronous_commit"].value; v == "off" {
		c = p.alter("synchronous_commit", "on").as(Warn, "synchronous_commit is off: a crash of the server may forget limits taken in your own transactions; other durable decisions turn it on for themselves")
	}
	for _, name := range []string{"full_page_writes", "fsync"} {
		if p.settings[name].value == "off" {
			c = p.system(name, "on").as(Fail, name+" is off: a crash of the machine may corrupt the whole database")
		}
	}
	return c, nil
}

// replica is a row of pg_stat_replication.
type replica struct {
	Name string
	Sync string // async, sync, quorum or potential; empty: this role may not see it
}

func checkReplicas(ctx context.Context, p *patient) (Check, error) {
	all, err := rows[replica](ctx, p, `SELECT coalesce(r.application_name, ''), coalesce(r.sync_state, '') FROM pg_stat_replication AS r ORDER BY 1, 2`)
	if err != nil {
		return Check{}, err
	}
	if hidden := slices.ContainsFunc(all, func(r replica) bool { return r.Sync == "" }); hidden {
		return p.hidden(printable.Count(len(all), "replica") + ", whose state is not visible to this role"), nil
	}
	return judgeReplicas(all, p.settings["synchronous_standby_names"].value, p.settings["synchronous_commit"].value, p.system("synchronous_standby_names", "")), nil
}

// judgeReplicas says what a failover can lose.
func judgeReplicas(all []replica, names, commit string, fix Check) Check {
	var c Check
	synchronous := 0
	for _, r := range all {
		if r.Sync == "sync" || r.Sync == "quorum" {
			synchronous++
		}
		c.Details = append(c.Details, fmt.Sprintf("replica %s is %s", r.Name, r.Sync))
	}
	waits := commit != "off" && commit != "local"
	switch {
	case names != "" && waits && synchronous == 0:
		fix.Details = c.Details
		return fix.as(Fail, fmt.Sprintf("synchronous_standby_names is %q and no such replica is connected: commits wait for it, until it starts", names))
	case names != "" && waits:
		c.Message = fmt.Sprintf("%d of %d replicas are synchronous: a failover to one of these loses no durable decision", synchronous, len(all))
	case len(all) > 0:
		c.Message = fmt.Sprintf("%s, all asynchronous: a failover loses the decisions that have not reached the replica, which are granted again", printable.Count(len(all), "replica"))
	default:
		c.Message = "no replica is connected: there is no server to fail over to"
	}
	return c
}

// load is how many connections are in use.
type load struct {
	Used      int64
	RoleUsed  int64
	RoleLimit int64 // -1: none
	DataUsed  int64
	DataLimit int64 // -1: none
}

func checkConnections(ctx context.Context, p *patient) (Check, error) {
	all, err := rows[load](ctx, p, `SELECT (SELECT coalesce(sum(d.numbackends), 0) FROM pg_stat_database AS d)::int8,
		(SELECT count(*) FROM pg_stat_activity AS a WHERE a.usename = current_user)::int8, r.rolconnlimit::int8,
		(SELECT coalesce(sum(s.numbackends), 0) FROM pg_stat_database AS s WHERE s.datname = d.datname)::int8, d.datconnlimit::int8
		FROM pg_roles AS r, pg_database AS d WHERE r.rolname = current_user AND d.datname = current_database()`)
	if err != nil {
		return Check{}, err
	}
	l := all[0]
	most := p.number("max_connections") - p.number("superuser_reserved_connections") - p.number("reserved_connections")
	return judgeConnections(l, most, p.size, p.opened), nil
}

// judgeConnections judges the tightest of three bounds. pool is the size of the pool, 0 if it
// has none, of which opened connections are in use already.
func judgeConnections(l load, most, pool, opened int64) Check {
	type bound struct {
		name       string
		used, most int64
	}
	tight := bound{"max_connections less the reserved ones", l.Used, most}
	for _, b := range []bound{{"the role's CONNECTION LIMIT", l.RoleUsed, l.RoleLimit}, {"the database's CONNECTION LIMIT", l.DataUsed, l.DataLimit}} {
		if b.most >= 0 && b.most-b.used < tight.most-tight.used {
			tight = b
		}
	}
	c := Check{Message: fmt.Sprintf("%d of %d connections are in use (%s); this pool opens up to %d", tight.used, tight.most, tight.name, pool)}
	if pool == 0 {
		c = Check{Verdict: Warn, Message: fmt.Sprintf("%d of %d connections are in use (%s), and this pool may open all others", tight.used, tight.most, tight.name),
			NextStep: "call db.SetMaxOpenConns"}
	}
	next := "close idle connections, lower the sizes of the pools, or put a pooler in between; docs/operations.md says how"
	switch free := tight.most - tight.used; {
	case free*20 < tight.most:
		c.Verdict, c.NextStep = Fail, next
	case free*5 < tight.most, free < pool-opened:
		c.Verdict, c.NextStep = Warn, next
	}
	return c
}

// number returns a setting's number: 0 if the server does not have it.
func (p *patient) number(name string) int64 {
	n, err := strconv.ParseInt(p.settings[name].value, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
