package testworld

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
)

// Durabilities are the two durabilities of a policy.
var Durabilities = []limiter.Durability{limiter.Durable, limiter.Relaxed}

// CommittedWith returns the synchronous_commit with which a separate statement must
// commit. Relaxed does not wait. Durable keeps the session's setting, which waits at least
// for the disk.
func CommittedWith(session string, d limiter.Durability) string {
	switch {
	case d == limiter.Relaxed:
		return "off"
	case session == "off":
		return "on"
	}
	return session
}

// CommitLog is a database that records how the transaction of each changed row was
// committed. A deferred trigger runs at commit.
type CommitLog struct {
	URL  string
	Pool *pgxpool.Pool
}

// NewCommitLog creates such a database for this test.
func NewCommitLog(t *testing.T) *CommitLog {
	t.Helper()
	c := &CommitLog{URL: NewDatabase(t)}
	c.Pool = Connect(t, c.URL)
	Exec(t, c.Pool, `CREATE TABLE committed (xid bigint, policy text, key text, setting text, isolation text)`)
	Exec(t, c.Pool, `CREATE FUNCTION committed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO committed VALUES (txid_current(), coalesce(NEW.policy, OLD.policy), coalesce(NEW.key, OLD.key),
			current_setting('synchronous_commit'), current_setting('transaction_isolation'));
		RETURN NULL;
	END $$`)
	for _, a := range algorithm.Tables {
		Exec(t, c.Pool, `CREATE CONSTRAINT TRIGGER committed AFTER INSERT OR UPDATE OR DELETE ON pglimit_`+string(a)+`
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION committed()`)
	}
	return c
}

// Expect fails the test unless each change of each key of a policy was committed with that
// setting.
func (c *CommitLog) Expect(t *testing.T, p limiter.Policy, setting string, changes map[string]int) {
	t.Helper()
	want := map[string]string{}
	for key, n := range changes {
		want[key] = strings.TrimSpace(strings.Repeat(setting+" ", n))
	}
	got := map[string]string{}
	rows, err := c.Pool.Query(t.Context(), `SELECT key, string_agg(setting, ' ') FROM committed WHERE policy = $1 GROUP BY key`, p.Name)
	if err != nil {
		t.Fatal(err)
	}
	var key, settings string
	if _, err := pgx.ForEachRow(rows, []any{&key, &settings}, func() error { got[key] = settings; return nil }); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s: committed with %v, want %v", p.Name, got, want)
	}
}

// MeetConflict has l wait for a row that another transaction changes, until that reveals a
// stricter default isolation than read committed to it. Between two waits for a locked row
// no statement is under way: a commit in that moment makes no conflict, and a busy machine may
// miss all waits. So it tries again, 20 times at most.
func (c *CommitLog) MeetConflict(t *testing.T, l *limiter.Limiter, p limiter.Policy) {
	t.Helper()
	const key = "contended"
	a := Answer{Result: Must(t)(l.Charge(t.Context(), p, key, 1))}
	for range 20 {
		if a.Err == nil && Value[string](t, c.Pool, `SELECT isolation FROM committed WHERE policy = '`+p.Name+`' AND key = '`+key+`' ORDER BY xid DESC LIMIT 1`) == "read committed" {
			return
		}
		tx := Begin(t, c.Pool, pgx.TxOptions{})
		Must(t)(l.InTx(tx).Charge(t.Context(), p, key, 1))
		met := make(chan Answer, 1)
		go func() {
			r, err := l.Charge(t.Context(), p, key, 1)
			met <- Answer{Result: r, Err: err}
		}()
		AwaitLongWait(t, c.Pool, func() bool { return len(met) > 0 })
		Commit(t, tx)
		if a = Receive(t, met, "a request whose row another transaction changed"); a.Err != nil && !errors.Is(a.Err, limiter.ErrUnavailable) {
			t.Fatal(a.Err)
		}
	}
	t.Fatal("20 waits for a row met no conflict")
}

// Isolate sets a database's default isolation, for connections opened from now on.
func Isolate(t *testing.T, pool *pgxpool.Pool, level string) {
	t.Helper()
	Exec(t, pool, `DO $$ BEGIN EXECUTE format(
		'ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), '`+level+`'); END $$`)
}
