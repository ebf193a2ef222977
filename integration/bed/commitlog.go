package bed

import (
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// Durabilities are the two that a policy can have.
var Durabilities = []limiter.Durability{limiter.Durable, limiter.Relaxed}

// CommittedWith is how a statement of its own has to commit: Relaxed without
// waiting; Durable as the session does, which waits at least for the disk.
func CommittedWith(session string, d limiter.Durability) string {
	switch {
	case d == limiter.Relaxed:
		return "off"
	case session == "off":
		return "on"
	}
	return session
}

// CommitLog is a database that notes, for each change of a row, how the
// transaction was committed: a deferred trigger runs when it commits.
type CommitLog struct {
	URL  string
	Pool *pgxpool.Pool
}

// NewCommitLog makes such a database for this test.
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
	for _, a := range limiter.Algorithms() {
		Exec(t, c.Pool, `CREATE CONSTRAINT TRIGGER committed AFTER INSERT OR UPDATE OR DELETE ON pglimit_`+string(a)+`
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION committed()`)
	}
	return c
}

// Expect compares what was noted for a policy: each change of each key, all
// committed with that setting.
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

// OneConnection gives a pool one connection, so that its session can be looked at.
func OneConnection(cfg *pgxpool.Config) { cfg.MaxConns = 1 }
