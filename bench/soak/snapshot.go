package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/doctor"
)

// pinned is what a transaction that keeps its snapshot does to the tables, and what the
// doctor says about it.
type pinned struct {
	// Before, Held and After are the readings before the snapshot, at its end and one
	// reading's time later.
	Before, Held, After reading
	// Well is what the doctor found in the soaked database before the snapshot, other than
	// OK. The checks that need the real clock are left out.
	Well []doctor.Check `json:"before_checks"`
	// Snapshots are the results of check snapshots: before, with the snapshot and after it.
	Snapshots [3]doctor.Check `json:"snapshots"`
}

// clockChecks compare the rows' times with the database's clock.
var clockChecks = []string{"clock", "future", "due", "janitor"}

// pinnedBy is the application of the session that holds the snapshot.
const pinnedBy = "soak report"

// pin holds a snapshot while the traffic goes on, and asks the doctor before, then and
// after it.
func (o *outcome) pin(ctx context.Context, s *server, t *traffic, r *reader, pool *pgxpool.Pool) (err error) {
	p := &o.Pinned
	old := o.plan.Pin / 2
	snapshots := func() (doctor.Check, error) {
		report, err := doctor.Run(ctx, pool, &doctor.Config{Only: []string{"snapshots"}, OldTransaction: old})
		if err != nil {
			return doctor.Check{}, err
		}
		return report.Checks[0], nil
	}
	report, err := doctor.Run(ctx, pool, &doctor.Config{Skip: clockChecks})
	if err != nil {
		return err
	}
	for _, c := range report.Checks {
		if c.Status != doctor.OK {
			p.Well = append(p.Well, c)
		}
	}
	if p.Snapshots[0], err = snapshots(); err != nil {
		return err
	}
	at := time.Since(t.began) - o.plan.Warm
	if p.Before, err = r.read(ctx, at, nil); err != nil {
		return err
	}

	progress("holding a snapshot for %v", o.plan.Pin)
	config, err := pgx.ParseConfig(s.URL())
	if err != nil {
		return err
	}
	config.RuntimeParams["application_name"] = pinnedBy
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "SELECT count(*) FROM "+prefix+"token_bucket"); err != nil { // takes the snapshot
		return err
	}
	if err := t.until(ctx, time.Now().Add(o.plan.Pin)); err != nil {
		return err
	}
	if p.Snapshots[1], err = snapshots(); err != nil {
		return err
	}
	if p.Held, err = r.read(ctx, time.Since(t.began)-o.plan.Warm, nil); err != nil {
		return err
	}
	progress("%s", p.Held.line(p.Before, p.Before))
	if err := tx.Rollback(ctx); err != nil {
		return err
	}
	if err := t.until(ctx, time.Now().Add(o.plan.Every)); err != nil {
		return err
	}
	if p.Snapshots[2], err = snapshots(); err != nil {
		return err
	}
	p.After, err = r.read(ctx, time.Since(t.began)-o.plan.Warm, nil)
	progress("%s", p.After.line(p.Held, p.Held))
	return err
}

// complaint returns what is wrong with the doctor's answers; "" if nothing is.
func (p pinned) complaint() string {
	for _, c := range p.Well {
		if c.Status == doctor.Fail {
			return fmt.Sprintf("check %s fails in the soaked database: %s", c.Name, c.Message)
		}
	}
	before, held, after := p.Snapshots[0], p.Snapshots[1], p.Snapshots[2]
	switch {
	case before.Status != doctor.OK:
		return "check snapshots, before the snapshot: " + before.Message
	case held.Status == doctor.OK:
		return "check snapshots does not report the snapshot: " + held.Message
	case !strings.Contains(strings.Join(held.Details, "\n"), fmt.Sprintf("application %q", pinnedBy)) || held.Fix == "":
		return "check snapshots does not name the session or its end: " + held.Message + "; " + held.Fix
	case after.Status != doctor.OK:
		return "check snapshots, after the snapshot: " + after.Message
	}
	return ""
}
