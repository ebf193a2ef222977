// Package stores tests the files of stores/ in their frameworks, by one contract: drivers in
// testdata send requests through each as an application does.
package stores

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/repository"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }

// frameworks are the drivers: each sends requests to a limit of 5 in an hour or longer.
var frameworks = []struct {
	name       string
	command    []string // the driver, in testdata
	ids        bool     // the program can name a request
	failsOpen  bool     // there is an option for it; otherwise the framework decides
	fieldNames bool     // answers have RateLimit
	within     bool     // the decision is in the request's transaction
}{
	{"express", []string{"node", "express.cjs", "middleware"}, true, true, true, false},
	{"express-rate-limit", []string{"node", "express.cjs", "store"}, false, false, false, false},
	{"rack", []string{"ruby", "rack.rb", "rails"}, true, true, true, false},
	{"rack-attack", []string{"ruby", "rack.rb", "attack"}, false, true, false, false},
	{"django", []string{"/usr/bin/python3", "django_site.py", "autocommit"}, true, true, true, false},
	{"django-atomic", []string{"/usr/bin/python3", "django_site.py", "atomic"}, true, false, true, true},
	{"flask-fixed", []string{"/usr/bin/python3", "flask_site.py", "fixed-window"}, false, false, false, false},
	{"flask-moving", []string{"/usr/bin/python3", "flask_site.py", "moving-window"}, false, false, false, false},
	{"limits-counter", []string{"/usr/bin/python3", "flask_site.py", "sliding-window-counter"}, false, false, false, false},
	{"symfony", []string{"php", "symfony.php"}, true, true, false, false},
}

// answer is a driver's answer to a request.
type answer struct {
	Status     int     `json:"status"`
	RetryAfter float64 `json:"retry_after"` // seconds
	Field      string  `json:"field"`       // RateLimit
}

// driver is a running program that sends the requests of the test.
type driver struct {
	t     *testing.T
	stdin io.Writer
	lines *bufio.Reader
	said  *testworld.Buffer
}

func root(t testing.TB) string {
	t.Helper()
	return filepath.Join(must.OK(repository.Root())(t), "stores")
}

// drive starts a driver over a database.
func drive(t *testing.T, database string, command []string, env ...string) *driver {
	t.Helper()
	args := append([]string{filepath.Join("testdata", command[1])}, command[2:]...)
	cmd := osexec.CommandContext(t.Context(), must.OK(osexec.LookPath(command[0]))(t), args...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+database, "STORES="+root(t), "PYTHONDONTWRITEBYTECODE=1",
		"NODE_PATH=/usr/local/lib/pglimit/usr/share/nodejs:/usr/share/nodejs:"+os.Getenv("NODE_PATH"))
	cmd.Env = append(cmd.Env, env...)
	d := &driver{t: t, said: new(testworld.Buffer)}
	cmd.Stderr = d.said
	d.stdin = must.OK(cmd.StdinPipe())(t)
	d.lines = bufio.NewReader(must.OK(cmd.StdoutPipe())(t))
	must.Succeed(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return d
}

// do tells the driver what to do, and returns the answers.
func (d *driver) do(op, key, id string, n int) ([]answer, error) {
	line, err := json.Marshal(map[string]any{"op": op, "key": key, "id": id, "n": n})
	if err != nil {
		return nil, err
	}
	if _, err = fmt.Fprintf(d.stdin, "%s\n", line); err != nil {
		return nil, fmt.Errorf("%w: %s", err, d.said)
	}
	told, err := d.lines.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, d.said)
	}
	var answers []answer
	if err := json.Unmarshal(told, &answers); err != nil {
		return nil, fmt.Errorf("%w in %q: %s", err, told, d.said)
	}
	return answers, nil
}

// hit sends requests at once and checks how many are allowed, how many denied with a time to wait,
// and how many get another status. It returns the answers.
func (d *driver) hit(key, id string, allowed, denied, unavailable int) []answer {
	d.t.Helper()
	answers, err := d.do("hit", key, id, allowed+denied+unavailable)
	if err != nil {
		d.t.Fatal(err)
	}
	var got [3]int
	for _, a := range answers {
		switch a.Status {
		case 200:
			got[0]++
		case 429:
			got[1]++
			if a.RetryAfter <= 0 {
				d.t.Errorf("key %.20q: denied without a time to wait", key)
			}
		case 500, 503:
			got[2]++
		}
	}
	if got != [3]int{allowed, denied, unavailable} {
		d.t.Fatalf("key %.20q, id %q: %d allowed, %d denied and %d unavailable, want %d, %d and %d; stderr %s", key, id, got[0], got[1], got[2], allowed, denied, unavailable, d.said)
	}
	return answers
}

func (d *driver) reset(key string) {
	d.t.Helper()
	if _, err := d.do("reset", key, "", 0); err != nil {
		d.t.Fatal(err)
	}
}

// database makes a database with the functions and stores.sql, and policy login: 5 an hour.
func database(t *testing.T) (*pgxpool.Pool, string) {
	t.Helper()
	pool := testworld.FunctionsPool(t)
	for _, file := range []string{"stores.sql", "supabase.sql"} {
		testworld.Exec(t, pool, string(must.OK(os.ReadFile(filepath.Join(root(t), file)))(t)))
	}
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, burst)
		VALUES ('login', 'fixed_window', 5, 3600, NULL), ('queue', 'leaky_bucket_queue', 1, 3600, 5)`)
	return pool, pool.Config().ConnString()
}

// TestStores: in each framework a limit of 5 allows five requests and denies the sixth with the
// time to wait; keys do not mix, also those that PostgreSQL cannot store; a reset allows again;
// many callers at once get exactly five; a request under one idempotency key counts once, and so
// does one whose answer was lost; connections that were closed are replaced; and while the
// database is away, what is documented happens.
func TestStores(t *testing.T) {
	t.Parallel()
	for _, f := range frameworks {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			pool, address := database(t)
			way := startWay(t, pool.Config().ConnConfig)
			address = through(t, address, way)
			d := drive(t, address, f.command)

			for i := range 5 {
				if field := d.hit("alice", "", 1, 0, 0)[0].Field; f.fieldNames && !strings.HasPrefix(field, fmt.Sprintf(`"login";r=%d;t=`, 4-i)) {
					t.Errorf("request %d: RateLimit is %q", i+1, field)
				}
			}
			d.hit("alice", "", 0, 1, 0)
			d.hit("bob", "", 1, 0, 0)
			d.reset("alice")
			d.hit("alice", "", 1, 0, 0)
			d.hit("bob", "", 4, 1, 0)

			for _, key := range []string{"", strings.Repeat("k", 3000), strings.Repeat("k", 3000) + "l", "n\x00x", "n\x00y", "ключ/ä:%*"} {
				d.hit(key, "", 5, 1, 0)
			}

			if f.ids {
				for range 4 {
					d.hit("once", "task-1", 1, 0, 0)
				}
				d.hit("once", "", 4, 1, 0)
				d.hit("once", "task-1", 1, 0, 0) // admitted before
			}

			// Each answer is lost after the statement has ended. Sent again, it counts once. In a
			// transaction, which is lost with it, it is not sent again.
			for range 2 {
				way.loseOne()
				if f.within {
					d.hit("lost", "", 0, 0, 1)
				} else {
					d.hit("lost", "", 1, 0, 0)
				}
				way.lost(t)
			}
			if f.within {
				d.hit("lost", "", 5, 1, 0)
				d.hit("rolled back", "", 5, 1, 0) // the driver sends a request that fails before each
			} else {
				d.hit("lost", "", 3, 1, 0)
			}

			testParallel(t, f.command, address, d)

			way.close() // as in a restart of the server
			way.open()
			d.hit("restarted", "", 1, 0, 0) // the pool has more than one that is lost
			d.hit("restarted", "", 4, 1, 0)

			way.close()
			if f.failsOpen {
				open := drive(t, address, f.command, "ON_ERROR=fail_open")
				open.hit("away", "", 6, 0, 0)
			}
			d.hit("away", "", 0, 0, 2)
			way.open()
			d.hit("away", "", 5, 1, 0)
		})
	}
}

// testParallel: two processes with ten callers each get exactly five.
func testParallel(t *testing.T, command []string, address string, first *driver) {
	t.Helper()
	drivers := []*driver{first, drive(t, address, command)}
	var all sync.WaitGroup
	counts, errs := make([]int, len(drivers)), make([]error, len(drivers))
	for i, d := range drivers {
		all.Go(func() {
			var answers []answer
			answers, errs[i] = d.do("hit", "crowd", "", 10)
			for _, a := range answers {
				if a.Status == 200 {
					counts[i]++
				} else if a.Status != 429 {
					errs[i] = fmt.Errorf("status %d: %s", a.Status, d.said)
				}
			}
		})
	}
	all.Wait()
	sum := 0
	for i := range drivers {
		must.Succeed(t, errs[i])
		sum += counts[i]
	}
	if sum != 5 {
		t.Errorf("20 requests at once: %d allowed", sum)
	}
}

// through returns the URL of a database by another way.
func through(t *testing.T, address string, w *way) string {
	t.Helper()
	u := must.OK(url.Parse(address))(t)
	u.Host = w.address
	return u.String()
}
