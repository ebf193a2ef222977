package main

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
)

func TestMain(m *testing.M) { testdb.Main(m, migrate) }

// work inserts jobs and lets two workers work until there were n events of the kinds. It
// returns how many were snoozed, for between least and most.
func work(t *testing.T, pool *pgxpool.Pool, rates map[string]limiter.Policy, jobs []river.JobArgs, least, most time.Duration, n int, kinds ...river.EventKind) (snoozed int) {
	t.Helper()
	client, err := newClient(pool, testdb.Limiter(t, pool, nil), rates, 2)
	if err != nil {
		t.Fatal(err)
	}
	events, unsubscribe := client.Subscribe(kinds...)
	defer unsubscribe()
	var params []river.InsertManyParams
	for _, job := range jobs {
		params = append(params, river.InsertManyParams{Args: job})
	}
	if _, err := client.InsertMany(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	if err := client.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.StopAndCancel(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for range n {
		e := <-events
		if e.Kind != river.EventKindJobSnoozed {
			continue
		}
		snoozed++
		if away := e.Job.ScheduledAt.Sub(*e.Job.AttemptedAt); away < least || away > most {
			t.Errorf("a job was snoozed for %v, want the time until there is room", away)
		}
	}
	return snoozed
}

// count returns the number of a tenant's rows in a table.
func count(t *testing.T, pool *pgxpool.Pool, table, tenant string) (n int) {
	t.Helper()
	rows, _ := pool.Query(t.Context(), `SELECT count(*) FROM `+table+` WHERE tenant = $1`, tenant)
	n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func repeat(n int, job river.JobArgs) (jobs []river.JobArgs) {
	for range n {
		jobs = append(jobs, job)
	}
	return jobs
}

func TestReportsStayWithinTheBudget(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.Migrated)
	snoozed := work(t, pool, nil, append(repeat(5, Report{"blue"}), Report{"red"}), 23*time.Hour, 25*time.Hour, 6,
		river.EventKindJobCompleted, river.EventKindJobSnoozed)
	if blue, red := count(t, pool, "reports", "blue"), count(t, pool, "reports", "red"); blue != 2 || red != 1 || snoozed != 3 {
		t.Errorf("blue has %d reports, red %d, and %d were put off; want 2, 1 and 3", blue, red, snoozed)
	}
}

// TestReportIsCountedOnce: a commit that fails undoes the report, its count and the job's
// end. The next try makes all three.
func TestReportIsCountedOnce(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.Migrated)
	_, err := pool.Exec(t.Context(), `
		CREATE SEQUENCE tries; -- a sequence is not rolled back
		CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('tries') = 1 THEN RAISE 'the first commit fails'; END IF;
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER fail_once AFTER INSERT ON reports
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail_once()`)
	if err != nil {
		t.Fatal(err)
	}
	work(t, pool, nil, repeat(1, Report{"blue"}), 0, 0, 2, river.EventKindJobFailed, river.EventKindJobCompleted)
	r, err := testdb.Limiter(t, pool, nil).Check(t.Context(), reports, "blue", 0)
	if written := count(t, pool, "reports", "blue"); err != nil || written != 1 || r.Level != 1 {
		t.Errorf("%d reports were written and %v counted, %v, want 1", written, r.Level, err)
	}
}

// TestABusyTenantHoldsUpNobody: two workers first see fifty jobs of a tenant that may have
// one an hour. The jobs of another tenant are still done.
func TestABusyTenantHoldsUpNobody(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.Migrated)
	rates := map[string]limiter.Policy{"busy": perSecond(1. / 3600), "quiet": perSecond(1000)}
	snoozed := work(t, pool, rates, append(repeat(50, Webhook{"busy"}), repeat(5, Webhook{"quiet"})...), 50*time.Minute, 70*time.Minute, 1+49+5,
		river.EventKindJobCompleted, river.EventKindJobSnoozed)
	if busy, quiet := count(t, pool, "webhooks", "busy"), count(t, pool, "webhooks", "quiet"); busy != 1 || quiet != 5 || snoozed != 49 {
		t.Errorf("%d busy and %d quiet webhooks were sent and %d jobs snoozed, want 1, 5 and 49", busy, quiet, snoozed)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	url := testdb.Empty.New(t)
	for _, first := range []bool{true, false} { // and again, when the day's reports are used up
		var out strings.Builder
		if err := run(t.Context(), &out, url); err != nil {
			t.Fatal(err)
		}
		if first {
			testdb.InREADME(t, out.String())
		} else if strings.Count(out.String(), "10 webhooks sent, 0 reports written, 3 put off") != 2 {
			t.Errorf("the second run printed:\n%s", &out)
		}
	}
}
