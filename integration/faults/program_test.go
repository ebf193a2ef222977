package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
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
}

// note is a line that a program writes before each request and after its answer, without a
// buffer. A request without an answer was in flight when the program was killed.
type note struct {
	ID       int64
	Answered bool
	What     string `json:",omitempty"` // the verb
	Failed   string `json:",omitempty"` // an error: the request may have been counted
	Policies []limiter.Policy
	Keys     []string
	Units    float64 // for each key, those requested or those granted; negative ones are given back
	At       time.Time
	Order    string // the row of the same transaction
	Once     string // the idempotency key
	Stays    bool   // what is granted stays counted
	Fault    string `json:",omitempty"` // what must not happen
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
	p := &programRun{out: out}
	if err := json.Unmarshal([]byte(text), &p.task); err != nil {
		return err
	}
	cfg, err := pgxpool.ParseConfig(p.URL)
	if err != nil {
		return err
	}
	cfg.MaxConns = connections
	cfg.ConnConfig.RuntimeParams["application_name"] = p.Name
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return err
	}
	l, err := limiter.New(pool, &limiter.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	p.client = overPool(pool, l)
	act := p.request
	if p.Waits {
		act = p.wait
	}
	var ended sync.WaitGroup
	for i := range programCallers {
		ended.Go(func() {
			for {
				act(i)
			}
		})
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

type programRun struct {
	task
	*client
	out io.Writer
	ids atomic.Int64
}

// tell writes a note in one write, which a pipe takes whole or not at all.
func (p *programRun) tell(n note) {
	line, err := json.Marshal(n)
	if err != nil {
		panic(err) // it has only plain fields
	}
	if _, err := p.out.Write(append(line, '\n')); err != nil {
		os.Exit(1) // nobody reads
	}
}

// send tells of a request before and after. send returns the units that were granted.
func (p *programRun) send(n note, send func(context.Context) (units float64, err error)) bool {
	n.ID = p.ids.Add(1)
	p.tell(n)
	units, err := send(context.Background())
	answer := note{ID: n.ID, Answered: true, Units: units, At: n.At}
	if err != nil {
		p.fails(&answer, err)
	} else if n.Stays && math.Abs(units-n.Units) > slack {
		answer.Fault = fmt.Sprintf("%s: %v of %v units were granted of %v", p.Name, units, n.Units, n.Keys)
	}
	p.tell(answer)
	return err == nil
}

// fails tells of an error. Nothing is at fault but other programs, so it is about a row that
// one of them has locked.
func (p *programRun) fails(answer *note, err error) {
	answer.Failed = err.Error()
	if !errors.Is(err, limiter.ErrUnavailable) && !errors.Is(err, limiter.ErrOverloaded) {
		answer.Fault = fmt.Sprintf("%s: %v", p.Name, err)
	}
}

// request sends one request, of a verb that needs no wait.
func (p *programRun) request(int) {
	policy, key := anyOf(budgets, places)
	n := note{What: "AllowN", Policies: []limiter.Policy{policy}, Keys: []string{key}, Units: units(), Stays: true}
	granted := func(r limiter.Result, err error) (float64, error) { return r.Granted, err }
	switch rand.IntN(10) {
	default:
		p.send(n, func(ctx context.Context) (float64, error) { return granted(p.l.AllowN(ctx, policy, key, n.Units)) })
	case 0:
		n.What = "AllowUpTo"
		p.send(n, func(ctx context.Context) (float64, error) { return granted(p.l.AllowUpTo(ctx, policy, key, n.Units)) })
	case 1, 6, 7:
		request := policy.Request(key, n.Units)
		request.IdempotencyKey = p.newID("once")
		n.What, n.Once = "Do", request.IdempotencyKey
		p.send(n, func(ctx context.Context) (float64, error) { return granted(p.l.Do(ctx, request)) })
	case 2:
		back := n
		n.What, back.What, back.Units = "Charge", "Refund", -n.Units
		if p.send(n, func(ctx context.Context) (float64, error) { return granted(p.l.Charge(ctx, policy, key, n.Units)) }) &&
			// A queue refunds nothing, and a log may refund what the load has reserved.
			policy.Algorithm != limiter.LeakyBucketQueue && policy.Algorithm != limiter.SlidingWindowLog {
			p.send(back, func(ctx context.Context) (float64, error) {
				r, err := p.l.Refund(ctx, policy, key, n.Units)
				return -r.Granted, err
			})
		}
	case 3:
		other, too := anyOf(budgets, places)
		if other == policy && too == key {
			return
		}
		n.What = "AllowAll"
		n.Policies, n.Keys = append(n.Policies, other), append(n.Keys, too)
		p.send(n, func(ctx context.Context) (float64, error) {
			all, err := p.l.AllowAll(ctx, policy.Request(key, n.Units), other.Request(too, n.Units))
			if err != nil || !all.Allowed {
				return 0, err
			}
			return n.Units, nil
		})
	case 4:
		policy, key := anyOf(orders, places)
		n.What, n.Order = "AllowN in a transaction", p.newID("order")
		n.Policies[0], n.Keys[0] = policy, key
		p.send(n, func(ctx context.Context) (float64, error) { return n.Units, p.order(ctx, n) })
	case 5:
		p.reserve()
	}
	<-time.After(rand.N(2 * pause))
}

func (p *programRun) newID(what string) string {
	return fmt.Sprint(what, "-", p.Name, "-", p.ids.Add(1))
}

// order inserts an order and takes its units in one transaction.
func (p *programRun) order(ctx context.Context, n note) error {
	tx, err := p.begin(ctx)
	if err != nil {
		return err
	}
	_, err = tx.exec(ctx, insertOrder, n.Order, n.Policies[0].Name, n.Keys[0], n.Units)
	if err == nil {
		_, err = tx.AllowN(ctx, n.Policies[0], n.Keys[0], n.Units)
	}
	if err != nil {
		return errors.Join(err, tx.rollback(ctx))
	}
	return tx.commit(ctx)
}

// reserve reserves units and cancels that a while later, unless it is killed before.
func (p *programRun) reserve() {
	policy, key := anyOf(kept, places)
	n := note{What: "Reserve", Policies: []limiter.Policy{policy}, Keys: []string{key}, Units: units()}
	var res limiter.Reservation
	reserve := func(ctx context.Context) (float64, error) {
		var err error
		res, err = p.l.Reserve(ctx, policy.Request(key, n.Units), reserved)
		return res.Result.Granted, err
	}
	if p.send(n, reserve) {
		<-time.After(rand.N(reserved / 10))
		// A machine that is busy may be later than the reservation's end.
		if err := p.l.Cancel(context.Background(), res.ID); err != nil && !errors.Is(err, limiter.ErrReservationEnded) && !errors.Is(err, limiter.ErrUnavailable) {
			p.tell(note{Answered: true, Fault: fmt.Sprintf("%s: cancel: %v", p.Name, err)})
		}
	}
}

// wait joins queues: the first callers one in which they stay, and the others one in which
// turns come.
func (p *programRun) wait(caller int) {
	policy, key, n := standstill, "key", waits
	if caller >= programCallers/4 {
		policy, key, n = tightQueue(), "key-0", 1.0
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if policy == standstill {
		ctx = context.Background() // else it would not join: its turn is too late
	}
	id := p.ids.Add(1)
	p.tell(note{ID: id, What: "DoWait", Policies: []limiter.Policy{policy}, Keys: []string{key}, Units: n, Stays: policy == standstill})
	r, err := p.l.DoWait(ctx, policy.Request(key, n))
	answer := note{ID: id, Answered: true, Units: r.Granted, At: r.At}
	if err != nil {
		p.fails(&answer, err)
	}
	p.tell(answer)
	if !r.Allowed {
		<-time.After(4 * pause)
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
