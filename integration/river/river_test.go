package river

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/riverlimit"
)

// report is a job.
type report struct{}

func (report) Kind() string { return "report" }

// reports counts how often each job was worked.
type reports struct {
	river.WorkerDefaults[report]
	snoozes bool // each job once
	mu      sync.Mutex
	worked  map[int64]int
}

func (w *reports) Work(_ context.Context, job *river.Job[report]) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.worked[job.ID]++; w.snoozes && w.worked[job.ID] == 1 {
		return river.JobSnooze(0)
	}
	return nil
}

// start starts a client whose jobs pass the middleware, and returns its worker and events.
func start(t *testing.T, pool *pgxpool.Pool, limit rivertype.WorkerMiddleware) (*river.Client[pgx.Tx], *reports, <-chan *river.Event) {
	t.Helper()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err == nil {
		_, err = migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	}
	worker, workers := &reports{worked: map[int64]int{}}, river.NewWorkers()
	river.AddWorker(workers, worker)
	var client *river.Client[pgx.Tx]
	if err == nil {
		client, err = river.NewClient(driver, &river.Config{
			Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}},
			Workers:           workers,
			Middleware:        []rivertype.Middleware{limit},
			FetchPollInterval: 50 * time.Millisecond,
			FetchCooldown:     50 * time.Millisecond,
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	events, unsubscribe := client.Subscribe(river.EventKindJobCompleted, river.EventKindJobSnoozed, river.EventKindJobCancelled, river.EventKindJobFailed)
	t.Cleanup(unsubscribe)
	must.Succeed(t, client.Start(t.Context()))
	t.Cleanup(func() {
		if err := client.StopAndCancel(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return client, worker, events
}

// insert inserts jobs of one attempt each: River discards those whose attempts are used up.
func insert(t *testing.T, client *river.Client[pgx.Tx], n int) {
	t.Helper()
	var jobs []river.InsertManyParams
	for range n {
		jobs = append(jobs, river.InsertManyParams{Args: report{}, InsertOpts: &river.InsertOpts{MaxAttempts: 1}})
	}
	must.OK(client.InsertMany(t.Context(), jobs))(t)
}

// TestSnoozes: in each period as many jobs are worked as the limit allows. The others are
// snoozed until the limit has room, use up no attempt, and are worked once in the end.
func TestSnoozes(t *testing.T) {
	t.Parallel()
	const jobs, limit, period = 10, 4, 24 * time.Hour
	perDay := limiter.Policy{Name: "reports", Algorithm: limiter.FixedWindow, Limit: limit, Period: period}
	var days atomic.Int64
	now := func() time.Time { return time.Date(2026, 6, 1+int(days.Load()), 18, 0, 0, 0, time.UTC) }
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: now})
	client, worker, events := start(t, pool, riverlimit.New(l, riverlimit.Each(riverlimit.Kind, perDay)))
	insert(t, client, jobs)
	for open := jobs; open > 0; {
		var snoozed []int64
		for range open {
			e := <-events
			switch e.Kind {
			case river.EventKindJobCompleted:
			case river.EventKindJobSnoozed:
				snoozed = append(snoozed, e.Job.ID)
				r, err := l.Check(t.Context(), perDay, "report", 1)
				if away := e.Job.ScheduledAt.Sub(*e.Job.AttemptedAt); err != nil || away < r.RetryAfter-time.Second || away > r.RetryAfter+10*time.Minute {
					t.Errorf("a job was snoozed for %v, but the limit has room in %v, %v", away, r.RetryAfter, err)
				}
				if e.Job.Attempt != 0 || e.Job.MaxAttempts != 1 {
					t.Errorf("a snoozed job has used %d of %d attempts", e.Job.Attempt, e.Job.MaxAttempts)
				}
			default:
				t.Fatalf("a job ended with %s: %v", e.Kind, e.Job.Errors)
			}
		}
		if done := open - len(snoozed); done != min(open, limit) {
			t.Errorf("on day %d %d of %d jobs were worked, want %d", days.Load(), done, open, min(open, limit))
		}
		open = len(snoozed)
		days.Add(1) // now the snoozed jobs are due
		for _, id := range snoozed {
			must.OK(client.JobRetry(t.Context(), id))(t)
		}
	}
	if len(worker.worked) != jobs {
		t.Errorf("%d jobs were worked, want %d", len(worker.worked), jobs)
	}
	for id, n := range worker.worked {
		if n != 1 {
			t.Errorf("job %d was worked %d times", id, n)
		}
	}
}

// TestFailures: a job that can never be granted is cancelled, and one without a decision has the
// limiter's error. Neither is worked.
func TestFailures(t *testing.T) {
	t.Parallel()
	perDay := limiter.Policy{Name: "reports", Algorithm: limiter.FixedWindow, Limit: 1, Period: 24 * time.Hour}
	for _, c := range []struct {
		cost   float64
		closed bool
		kind   river.EventKind
		text   string
	}{
		{2, false, river.EventKindJobCancelled, "the cost is more than the limit ever allows"},
		{1, true, river.EventKindJobFailed, limiter.ErrClosed.Error()},
	} {
		pool := testworld.NewPool(t)
		l := testworld.NewLimiter(t, pool, nil)
		if c.closed {
			l.Close()
		}
		client, worker, events := start(t, pool, riverlimit.New(l, func(context.Context, *rivertype.JobRow) ([]limiter.Request, error) {
			return []limiter.Request{perDay.Request("all", c.cost)}, nil
		}))
		insert(t, client, 1)
		e := <-events
		if len(e.Job.Errors) != 1 || e.Kind != c.kind || !strings.Contains(e.Job.Errors[0].Error, c.text) || len(worker.worked) != 0 {
			t.Errorf("got %s with the errors %v, and %d were worked, want %s with %q", e.Kind, e.Job.Errors, len(worker.worked), c.kind, c.text)
		}
	}
}

// TestWorkerSnoozes: a job that its worker snoozes counts again when it is worked again, although
// River gives it the same attempt.
func TestWorkerSnoozes(t *testing.T) {
	t.Parallel()
	perDay := limiter.Policy{Name: "reports", Algorithm: limiter.FixedWindow, Limit: 9, Period: 24 * time.Hour}
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	client, worker, events := start(t, pool, riverlimit.New(l, riverlimit.Each(riverlimit.Kind, perDay)))
	worker.snoozes = true
	insert(t, client, 1)
	for want := range 2 {
		if e := <-events; e.Kind != []river.EventKind{river.EventKindJobSnoozed, river.EventKindJobCompleted}[want] {
			t.Errorf("event %d is %s", want, e.Kind)
		}
	}
	if r, err := l.Check(t.Context(), perDay, "report", 0); err != nil || r.Level != 2 {
		t.Errorf("%v, %v are counted, want 2", r.Level, err)
	}
}

// losing is a connection that loses an answer while lose is set, and fails.
type losing struct {
	net.Conn
	lose *atomic.Bool
}

func (c losing) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.lose.CompareAndSwap(true, false) {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// TestLostAnswer: a job whose decision was counted, but whose answer was lost, is worked and
// counts once.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	var lose atomic.Bool
	pool := testworld.Connect(t, testworld.NewDatabase(t), func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return losing{conn, &lose}, err
		}
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // its answer is not to be lost
	})
	l := testworld.NewLimiter(t, pool, nil)
	perDay := limiter.Policy{Name: "reports", Algorithm: limiter.FixedWindow, Limit: 9, Period: 24 * time.Hour}
	limit := riverlimit.New(l, riverlimit.Each(riverlimit.Kind, perDay))
	for id, kind := range []string{"first", "second"} { // the statement is prepared with the first
		lose.Store(kind == "second")
		err := limit.Work(t.Context(), &rivertype.JobRow{ID: int64(id), Attempt: 1, Kind: kind}, func(context.Context) error { return nil })
		if r, unread := l.Check(t.Context(), perDay, kind, 0); err != nil || lose.Load() || r.Level != 1 {
			t.Errorf("%s: %v, %v; the answer was not lost: %v; %v are counted, want 1", kind, err, unread, lose.Load(), r.Level)
		}
	}
}
