package command

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
)

// proof is the output of prove --json.
type proof struct {
	Holds          bool
	Took           float64 `json:"took_s"`
	Workers, Pools int
	Pooler         bool
	Killed         int64
	Algorithms     []struct {
		Algorithm       string
		Keys            int
		Requests, Asked int64
		Admitted        int64
		Allowed         float64
		RolledBack      int64 `json:"rolled_back"`
		Unknown         int64
		PerSecond       float64 `json:"per_second"`
		P99             float64 `json:"p99_s"`
		Plans           struct {
			Keys            int
			Asked, Admitted int64
			Allowed         float64
		}
		Held struct {
			Keys            int
			Asked, Admitted int64
			Allowed         float64
			Rows            int64
			Meanwhile       int64 `json:"answered_meanwhile"`
			Stalls          int64
		}
		Exceeded []json.RawMessage
	}
}

// leftovers counts the rows of all tables of limits.
func leftovers(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	for _, table := range bed.LimitTables(t, pool) {
		n += bed.Value[int](t, pool, `SELECT count(*) FROM `+table)
	}
	return n
}

// TestProve: over a real server the proof holds for every algorithm, each had requests and
// admissions, connections were ended, and no rows are left.
func TestProve(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	code, stdout, stderr := bed.Pglimit(t, address, "prove", "--for", "4s", "--workers", "8", "--json")
	var p proof
	if err := json.Unmarshal([]byte(stdout), &p); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	if !p.Holds || p.Workers != 8 || p.Pooler || p.Killed == 0 || len(p.Algorithms) != 7 {
		t.Errorf("got %+v", p)
	}
	for _, a := range p.Algorithms {
		if a.Admitted == 0 || float64(a.Admitted) > a.Allowed || a.Asked <= a.Admitted || a.PerSecond == 0 || a.P99 == 0 || len(a.Exceeded) > 0 || a.Exceeded == nil {
			t.Errorf("got %+v", a)
		}
		if a.Plans.Admitted == 0 || float64(a.Plans.Admitted) > a.Plans.Allowed || a.Held.Admitted == 0 || float64(a.Held.Admitted) > a.Held.Allowed ||
			a.Held.Rows == 0 || a.Held.Meanwhile == 0 || a.Held.Stalls != 0 {
			t.Errorf("%s: two plans %+v, held rows %+v", a.Algorithm, a.Plans, a.Held)
		}
	}
	if n := leftovers(t, bed.Connect(t, address)); n != 0 {
		t.Errorf("it left %d rows", n)
	}
	code, stdout, stderr = bed.Pglimit(t, address, "prove", "--for", "300ms", "--workers", "2", "--kill=false")
	if code != 0 || !strings.Contains(stdout, "sliding_window_log") || !strings.Contains(stdout, "; 0 connections ended") || !strings.Contains(stdout, "It holds") ||
		!strings.Contains(stdout, "\ntwo limits in turn: ") || !strings.Contains(stdout, "\nrows locked: ") {
		t.Errorf("as text: exit code %d, %s%s", code, stdout, stderr)
	}
}

// TestProveFindsOverAdmission: a trigger gives units back without the limiter's knowledge.
// The proof finds it, names the key, and ends with exit code 1.
func TestProveFindsOverAdmission(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address)
	bed.Exec(t, pool, `CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN NEW.level := NEW.level / 2; RETURN NEW; END $$`)
	bed.Exec(t, pool, `CREATE TRIGGER forget BEFORE UPDATE ON pglimit_gcra FOR EACH ROW EXECUTE FUNCTION forget()`)
	prove := func(length time.Duration, flags ...string) (code int, stdout, stderr string) {
		return bed.Pglimit(t, address, append([]string{"prove", "--for", length.String(), "--workers", "8"}, flags...)...)
	}
	length := 2 * time.Second
	code, stdout, stderr := prove(length, "--json")
	for code == 0 && length < time.Minute { // a busy machine sends too few requests to exceed a limit
		length *= 2
		code, stdout, stderr = prove(length, "--json")
	}
	var p proof
	if err := json.Unmarshal([]byte(stdout), &p); err != nil || code != 1 || p.Holds {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	for _, a := range p.Algorithms {
		if (len(a.Exceeded) > 0) != (a.Algorithm == "gcra") {
			t.Errorf("%s: exceeded %s", a.Algorithm, a.Exceeded)
		}
	}
	if code, stdout, _ := prove(2 * length); code != 1 || !strings.Contains(stdout, "EXCEEDED: gcra, key ") {
		t.Errorf("as text: exit code %d, %s", code, stdout)
	}
	if n := leftovers(t, pool); n != 0 {
		t.Errorf("it left %d rows", n)
	}
}

// TestProveInterrupted: after Ctrl-C in the middle of a proof no rows are left.
func TestProveInterrupted(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address)
	prove := startCommand(t, address, "prove", "--for", "1h", "--workers", "8")
	bed.Eventually(t, "it has counted", func(ctx context.Context) (there bool, err error) {
		err = pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pglimit_leaky_bucket)`).Scan(&there)
		return there, err
	})
	prove.interrupt(t)
	if code, stdout := prove.end(t); code != 130 || stdout != "" || !strings.Contains(prove.stderr.String(), "interrupted") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, &prove.stderr)
	}
	if n := leftovers(t, pool); n != 0 {
		t.Errorf("it left %d rows", n)
	}
}

// TestCommandDemo: the demo creates its tables, shows every algorithm, and leaves no key.
func TestCommandDemo(t *testing.T) {
	t.Parallel()
	address := bed.EmptyDatabase(t)
	var d struct {
		Bursts []struct {
			Algorithm                string
			Allowed, Delayed, Denied int
			Results                  []json.RawMessage
		}
		Spend []struct {
			Moment string
			Spent  float64
		}
		Proof proof
	}
	bed.PglimitJSON(t, &d, address, "demo")
	if len(d.Bursts) != 7 || !d.Proof.Holds || len(d.Spend) != 2 || d.Spend[0].Spent != 120 || d.Spend[1].Spent != 0 {
		t.Errorf("got %+v", d)
	}
	for _, b := range d.Bursts {
		if n := b.Allowed + b.Delayed + b.Denied; n != len(b.Results) || n == 0 || b.Denied == 0 || (b.Delayed > 0) != (b.Algorithm == "leaky_bucket_queue") {
			t.Errorf("got %+v", b)
		}
	}
	if n := leftovers(t, bed.Connect(t, address)); n != 0 {
		t.Errorf("it left %d rows", n)
	}
}
