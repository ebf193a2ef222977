package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/pglimit/pglimit/examples/internal/testdb"
)

// used returns how many reports of a tenant are counted.
func (p *process) used(t *testing.T, tenant string) float64 {
	t.Helper()
	r, err := p.limits.Check(t.Context(), reports, tenant, 0)
	if err != nil {
		t.Fatal(err)
	}
	return r.Level
}

func TestReportsStayWithinTheBudget(t *testing.T) {
	t.Parallel()
	p := newProcess(t, testdb.Migrated.New(t), nil, nil, 4, river.EventKindJobCompleted, river.EventKindJobSnoozed)
	p.insert(t, 5, Report{"blue"})
	p.insert(t, 1, Report{"red"})
	p.start(t)
	jobs, kinds := await(t, p.events, 6)
	snoozed := 0
	for i, job := range jobs {
		if kinds[i] == river.EventKindJobSnoozed {
			snoozed++
			if away := job.ScheduledAt.Sub(*job.AttemptedAt); away < 23*time.Hour || away > 25*time.Hour {
				t.Errorf("a report was put off for %v, want the day until there is room", away)
			}
		}
	}
	if blue, red := p.count(t, "reports", "blue"), p.count(t, "reports", "red"); blue != 2 || red != 1 || snoozed != 3 {
		t.Errorf("blue has %d reports, red %d, and %d were put off; want 2, 1 and 3", blue, red, snoozed)
	}
	if blue, red := p.used(t, "blue"), p.used(t, "red"); blue != 2 || red != 1 {
		t.Errorf("counted are %g for blue and %g for red, want 2 and 1", blue, red)
	}
}

// TestReportIsCountedOnce: a commit that fails undoes the report, its count and the job's
// end. The next try makes all three.
func TestReportIsCountedOnce(t *testing.T) {
	t.Parallel()
	p := newProcess(t, testdb.Migrated.New(t), nil, nil, 1, river.EventKindJobFailed, river.EventKindJobCompleted)
	_, err := p.pool.Exec(t.Context(), `
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
	p.insert(t, 1, Report{"blue"})
	p.start(t)
	if _, kinds := await(t, p.events, 2); kinds[0] != river.EventKindJobFailed || kinds[1] != river.EventKindJobCompleted {
		t.Fatalf("events were %v, want one failure and then the end", kinds)
	}
	if written, counted := p.count(t, "reports", "blue"), p.used(t, "blue"); written != 1 || counted != 1 {
		t.Errorf("%d reports were written and %g counted, want 1", written, counted)
	}
	const transactions = `SELECT count(DISTINCT x) FROM (SELECT xmin::text FROM reports
		UNION ALL SELECT xmin::text FROM pglimit_fixed_window
		UNION ALL SELECT xmin::text FROM river_job) AS written(x)`
	if n := one[int](t, p.pool, transactions); n != 1 {
		t.Errorf("the report, its count and the job's end were written by %d transactions, want 1", n)
	}
}

func TestOutput(t *testing.T) {
	t.Parallel()
	url := testdb.Empty.New(t)
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"blue: 10 webhooks sent, 2 reports written, 1 put off to the next day\n" +
			"red: 10 webhooks sent, 2 reports written, 1 put off to the next day\n",
		"blue: 10 webhooks sent, 0 reports written, 3 put off to the next day\n" +
			"red: 10 webhooks sent, 0 reports written, 3 put off to the next day\n",
	} {
		var out bytes.Buffer
		if err := run(t.Context(), &out, url); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("run %d printed:\n%s\nwant:\n%s", i+1, out.String(), want)
		}
		if i == 0 && !strings.Contains(string(readme), "```\n"+want+"```\n") {
			t.Errorf("README.md does not show what the program prints:\n%s", want)
		}
	}
	if err := run(t.Context(), io.Discard, ""); err == nil || !strings.Contains(err.Error(), "DATABASE_URL") {
		t.Errorf("without DATABASE_URL: %v", err)
	}
}
