package command

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// proof is the output of prove --json.
type proof struct {
	Holds          bool
	Took           float64 `json:"took_s"`
	Workers, Pools int
	Pooler         bool
	Through        string
	Killed         int64
	Algorithms     []struct {
		Algorithm limiter.Algorithm
		part
		Kinds     []part
		PerSecond float64 `json:"per_second"`
		P99       float64 `json:"p99_s"`
		Exceeded  []json.RawMessage
		Faults    []struct{ Key, Fault string }
	}
}

// part is some of the keys.
type part struct {
	Kind                              string
	Keys, Requests                    int
	Asked, Admitted, Allowed, Unknown float64
	RolledBack                        float64 `json:"rolled_back"`
}

// TestProve: over a real server the proof holds for every algorithm, each had requests and
// admissions, connections were ended, and no rows are left.
func TestProve(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	var p proof
	fewest := 0.0
	for length := 6 * time.Second; fewest < 1000 && length < 2*time.Minute; length *= 2 { // a busy machine sends too few requests
		code, stdout, stderr := testworld.Pglimit(t, address, "prove", "--for", length.String(), "--workers", "8", "--json")
		p = proof{}
		if err := json.Unmarshal([]byte(stdout), &p); err != nil || code != 0 {
			t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
		}
		fewest = math.MaxFloat64
		for _, a := range p.Algorithms {
			fewest = min(fewest, a.Asked)
		}
	}
	if !p.Holds || p.Workers != 8 || p.Pooler || p.Killed == 0 || len(p.Algorithms) != 7 {
		t.Errorf("got %+v", p)
	}
	for _, a := range p.Algorithms {
		if a.Asked <= a.Admitted || a.PerSecond == 0 || a.P99 == 0 || len(a.Exceeded) > 0 || a.Exceeded == nil || len(a.Faults) > 0 {
			t.Errorf("got %+v", a)
		}
		kinds := ""
		for _, k := range a.Kinds {
			if kinds += k.Kind + " "; k.Keys == 0 || k.Admitted == 0 || k.Admitted > k.Allowed {
				t.Errorf("%s: %+v", a.Algorithm, k)
			}
		}
		want := map[limiter.Algorithm]string{limiter.LeakyBucket: "ticks ", limiter.FixedWindow: "aligned calendar "}[a.Algorithm]
		if want = "cold hot plans " + want + "sets "; kinds != want {
			t.Errorf("%s: kinds %s, want %s", a.Algorithm, kinds, want)
		}
	}
	testworld.NoRows(t, testworld.Connect(t, address))
}

// TestProveFindsOverAdmission: a trigger gives units back without the limiter's knowledge.
// The proof finds it, names the key, and ends with exit code 1.
func TestProveFindsOverAdmission(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	testworld.Exec(t, pool, `CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN NEW.level := NEW.level / 2; RETURN NEW; END $$`)
	testworld.Exec(t, pool, `CREATE TRIGGER forget BEFORE UPDATE ON pglimit_token_bucket FOR EACH ROW EXECUTE FUNCTION forget()`)
	found := func(p proof) (all bool) {
		all = true
		for _, a := range p.Algorithms {
			halves := testworld.TableOf(a.Algorithm) == "pglimit_token_bucket"
			if len(a.Exceeded) > 0 && !halves {
				t.Errorf("%s: exceeded %s", a.Algorithm, a.Exceeded)
			}
			all = all && (len(a.Exceeded) > 0 || !halves)
		}
		return all
	}
	for length := 2 * time.Second; ; length *= 2 { // a busy machine sends too few requests to exceed a limit: counts are wrong before
		var p proof
		code, stdout, stderr := testworld.Pglimit(t, address, "prove", "--for", length.String(), "--workers", "8", "--json")
		if code > 1 {
			t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
		}
		must.Succeed(t, json.Unmarshal([]byte(stdout), &p))
		if code == 1 && !p.Holds && found(p) {
			break
		}
		if length > time.Minute {
			t.Fatalf("exit code %d: %+v", code, p)
		}
	}
	testworld.NoRows(t, pool)
}

// TestProveFindsWrongKinds: triggers make each kind of keys wrong in the table of one
// algorithm. One proof finds them all, and blames no other key. On a busy machine it may
// not send enough requests: then a longer one is sent.
func TestProveFindsWrongKinds(t *testing.T) {
	t.Parallel()
	const enough = 150 // wrong rows of a kind in one proof, which it must find
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	wrongs := []struct{ algorithm, policy, when, change string }{
		{"leaky_bucket", "ticks", "BEFORE UPDATE", "NEW.level := greatest(0, NEW.level - 1)"},
		{"fixed_window", "aligned", "BEFORE INSERT OR UPDATE", "NEW.ends_at_us := NEW.ends_at_us - 1000"},
		{"fixed_window", "calendar", "BEFORE INSERT OR UPDATE", "NEW.ends_at_us := NEW.ends_at_us - 1"},
		{"token_bucket", "sets", "BEFORE UPDATE", "IF NEW.key LIKE '%-1' THEN NEW.level := OLD.level; END IF"},
		{"sliding_window_counter", "plans", "BEFORE UPDATE", "NEW.current := NEW.current - 1"},
	}
	blamed := map[string]string{}
	for i, w := range wrongs {
		name := fmt.Sprintf("wrong%d", i)
		testworld.Exec(t, pool, fmt.Sprintf(`CREATE SEQUENCE hits_%s`, w.policy))
		testworld.Exec(t, pool, fmt.Sprintf(`CREATE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN %s; PERFORM nextval('hits_%s'); RETURN NEW; END $$`, name, w.change, w.policy))
		testworld.Exec(t, pool, fmt.Sprintf(`CREATE TRIGGER %s %s ON %s FOR EACH ROW WHEN (NEW.policy LIKE '%%.%s' AND NEW.key LIKE '%%-%s-%%') EXECUTE FUNCTION %[1]s()`,
			name, w.when, testworld.TableOf(w.algorithm), w.policy, w.algorithm))
		blamed[w.algorithm] += w.policy + " "
	}
	for length := 4 * time.Second; ; length *= 2 {
		code, stdout, stderr := testworld.Pglimit(t, address, "prove", "--for", length.String(), "--workers", "8", "--json")
		var p proof
		if err := json.Unmarshal([]byte(stdout), &p); err != nil || code > 1 {
			t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
		}
		found := ""
		for _, a := range p.Algorithms {
			keys := a.Faults
			for _, e := range a.Exceeded {
				var key struct{ Key, Fault string }
				must.Succeed(t, json.Unmarshal(e, &key))
				keys = append(keys, key)
			}
			for _, k := range keys {
				kind, _, _ := strings.Cut(k.Key, "-")
				found += kind + " "
				if !strings.Contains(blamed[string(a.Algorithm)], kind+" ") {
					t.Errorf("%s: blamed %+v", a.Algorithm, k)
				}
			}
		}
		again := false
		for _, w := range wrongs {
			if strings.Contains(found, w.policy+" ") {
				continue
			}
			hits := testworld.Value[int](t, pool, `SELECT nextval('hits_`+w.policy+`')`)
			if testworld.Exec(t, pool, `SELECT setval('hits_`+w.policy+`', 1, false)`); hits > enough {
				t.Errorf("missed %s, which was wrong %d times", w.policy, hits)
			}
			again = true
		}
		if !again || t.Failed() {
			return
		}
	}
}

// TestProveReadOnly: on a read-only database a proof says so in one line, with the next step.
func TestProveReadOnly(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	testworld.Exec(t, testworld.Connect(t, address), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`)
	code, stdout, stderr := testworld.Pglimit(t, address, "prove", "--for", "1h")
	if code != 3 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, " is read-only: ") || !strings.Contains(stderr, "primary") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// TestProveInterrupted: after Ctrl-C in the middle of a proof no rows are left.
func TestProveInterrupted(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	prove := startCommand(t, address, "prove", "--for", "1h", "--workers", "8")
	testworld.Eventually(t, "it has counted", func(ctx context.Context) (there bool, err error) {
		err = pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pglimit_leaky_bucket)`).Scan(&there)
		return there, err
	})
	prove.interrupt(t)
	if code, stdout := prove.end(t); code != 130 || stdout != "" || !strings.Contains(prove.stderr.String(), "interrupted") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, &prove.stderr)
	}
	testworld.NoRows(t, pool)
}

// TestCommandDemo: the demo creates its tables, shows every algorithm, and leaves no key.
func TestCommandDemo(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
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
	testworld.PglimitJSON(t, &d, address, "demo", "--yes")
	if len(d.Bursts) != 7 || !d.Proof.Holds || len(d.Spend) != 2 || d.Spend[0].Spent != 120 || d.Spend[1].Spent != 0 {
		t.Errorf("got %+v", d)
	}
	for _, b := range d.Bursts {
		if n := b.Allowed + b.Delayed + b.Denied; n != len(b.Results) || n == 0 || b.Denied == 0 || (b.Delayed > 0) != (b.Algorithm == "leaky_bucket_queue") {
			t.Errorf("got %+v", b)
		}
	}
	testworld.NoRows(t, testworld.Connect(t, address))
}
