package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// programEnv makes the test binary a program that uses a limiter, which can be killed.
const programEnv = "PGLIMIT_TEST_FAULTS_PROGRAM"

func init() {
	text := os.Getenv(programEnv)
	if text == "" {
		return
	}
	if err := runProgram(text, os.Stdout, os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// task is what a program does.
type task struct {
	URL, Name string
	Waits     bool // join queues, instead of what takes no time
	Leases    bool // request units of leased limits only
}

// note is a line that a program writes before each request, after its answer and for each
// admission of a tight limit, without a buffer. A request without an outcome was in flight
// when the program was killed.
type note struct {
	ID       int64     `json:",omitempty"`
	Sent     *sent     `json:",omitempty"`
	Outcome  *outcome  `json:",omitempty"`
	Err      string    `json:",omitempty"`
	Admitted *part     `json:",omitempty"`
	At       time.Time `json:",omitzero"`
	Lent     bool      `json:",omitempty"` // admitted from a lease
	Problem  string    `json:",omitempty"` // what must not happen
}

// programDeeds are what a program's callers do: most of it is known by its entry.
var programDeeds = []deed{
	{20, allow}, {10, allowUpTo}, {30, (*worker).once}, {5, charge}, {5, (*worker).giveBack},
	{10, (*worker).together}, {10, inTx(allow)}, {10, (*worker).reserveShortly},
}

const programCallers = 32

// standstill is a queue in which nobody's turn comes, but for the first.
var standstill = limiter.Policy{Name: "standstill", Algorithm: limiter.LeakyBucketQueue, Limit: 1, Period: 1000 * time.Hour, Burst: 1000}

// waits is what a program's caller takes of the queue standstill.
const waits = 3.0

// kept are policies whose units programs reserve and do not give back when they are killed.
var kept = slices.DeleteFunc(everyAlgorithm("kept", never), func(p limiter.Policy) bool { return p.Algorithm == limiter.LeakyBucketQueue })

// reserved is how long a program's reservations last at most, which is the least that a
// limiter allows.
const reserved = time.Second

// runProgram does a task until it is killed, or its parent has ended and with it the input.
func runProgram(text string, out io.Writer, in io.Reader) error {
	var do task
	if err := json.Unmarshal([]byte(text), &do); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(do.URL)
	if err != nil {
		return err
	}
	config.MaxConns = connections
	config.ConnConfig.RuntimeParams["application_name"] = do.Name
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	limits := &limiter.Config{Logger: slog.New(slog.DiscardHandler)}
	if do.Leases { // no fault is the server's: a stop of the program is not to open the circuit breaker
		limits.Timeout, limits.DisableBreaker = requestTime, true
	}
	l, err := limiter.New(pool, limits)
	if err != nil {
		return err
	}
	tell := func(n note) { tell(out, n) }
	scene := &scene{
		program: do.Name + "-", times: &times{}, over: make(chan struct{}), books: &books{tell: tell},
		faults: &problems{tell: func(text string) { tell(note{Problem: do.Name + ": " + text}) }},
	}
	for i := range programCallers {
		w := &worker{scene: scene, client: overPool(pool, l)}
		switch {
		case do.Leases:
			go w.run([]deed{{100, (*worker).lease}})
		case !do.Waits:
			go w.run(programDeeds)
		case i < programCallers/4:
			go w.standStill()
		default:
			go w.run([]deed{{100, (*worker).waitPatiently}})
		}
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// tell writes a note in one write, which a pipe takes whole or not at all.
func tell(out io.Writer, n note) {
	line, err := json.Marshal(n)
	if err != nil {
		panic(err) // it has only plain fields
	}
	if _, err := out.Write(append(line, '\n')); err != nil {
		os.Exit(1) // nobody reads
	}
}

// reserveShortly reserves units and cancels that a while later, unless it is killed before.
func (w *worker) reserveShortly() {
	p, key := anyOf(kept, places)
	var res limiter.Reservation
	o, _ := w.ask("Reserve", func(ctx context.Context) (err error) {
		res, err = w.l.Reserve(ctx, p.Request(key, units()), reserved)
		return err
	})
	if o != answered {
		return
	}
	w.let(rand.N(reserved / 10))
	// A machine that is busy may be later than the reservation's end.
	if err := w.l.Cancel(context.Background(), res.ID); !errors.Is(err, limiter.ErrReservationEnded) {
		w.assess("Cancel", err)
	}
}

// standStill joins the queue standstill.
func (w *worker) standStill() {
	e := w.books.begin("DoWait", "", part{standstill, "key", waits, ""})
	_, err := w.l.DoWait(context.Background(), standstill.Request("key", waits))
	e.end(w.assess("DoWait", err), err)
}

// waitPatiently joins a queue in which turns come.
func (w *worker) waitPatiently() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p := tightQueue()
	e := w.books.begin("DoWait", "")
	r, err := w.l.DoWait(ctx, p.Request("key-0", 1))
	w.admitted(p, "key-0", r, err)
	e.end(w.assess("DoWait", err), err)
	if !r.Allowed {
		w.let(4 * pause)
	}
}

// tightQueue is the policy of the load that turns come of.
func tightQueue() limiter.Policy {
	for _, p := range tight {
		if p.Algorithm == limiter.LeakyBucketQueue {
			return p
		}
	}
	panic("there is no queue")
}
