package pooler

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// execModes are the names of default_query_exec_mode.
var execModes = []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"}

// outcome counts what failed in one mode. docs/operations.md has it as a table.
type outcome struct {
	verbs  int  // of 4 limiters' calls outside a transaction, those that failed
	inTx   int  // of 40 transactions, those that failed
	warned bool // a limiter logged the advice
	doctor doctor.Verdict
	other  int // of the janitor and the command, those that failed
}

// TestPoolerExecModes: through PgBouncer in transaction mode, a limit is exact in every
// mode. cache_describe and exec work without an error or a warning, and cache_statement too
// if PgBouncer keeps prepared statements.
func TestPoolerExecModes(t *testing.T) {
	t.Parallel()
	keeps := []int{0}
	if keep, err := testworld.BouncerKeepsStatements(); err != nil {
		t.Fatal(err)
	} else if keep {
		keeps = append(keeps, 200)
	}
	for _, most := range keeps {
		for _, mode := range execModes {
			t.Run(fmt.Sprintf("%s, max_prepared_statements %d", mode, most), func(t *testing.T) {
				t.Parallel()
				got := tryMode(t, mode, most)
				t.Logf("%+v", got)
				if got.other != 0 {
					t.Error("the janitor or the command failed")
				}
				switch {
				case mode == "cache_describe", mode == "exec", mode == "simple_protocol", mode == "cache_statement" && most > 0:
					if got != (outcome{}) {
						t.Errorf("%+v, want no error and no warning", got)
					}
				case mode == "cache_statement":
					if got.verbs != 0 || !got.warned || got.doctor != doctor.Warn {
						t.Errorf("%+v, want verbs that work, and the advice", got)
					}
				default: // describe_exec
					if got.doctor != doctor.Warn {
						t.Errorf("%+v, want the doctor to warn", got)
					}
				}
			})
		}
	}
}

// trial is a run of the callers of one mode.
type trial struct {
	*testing.T
	mode, address string
	prepared      bool // statements, which PgBouncer does not keep
	logged        testworld.Buffer
	logger        *slog.Logger
	limiters      []*limiter.Limiter
	pools         []*pgxpool.Pool
	mu            sync.Mutex
	got           outcome
}

// count counts an error.
func (r *trial) count(into *int, err error) {
	if err != nil {
		r.Logf("%v", err)
		r.mu.Lock()
		*into++
		r.mu.Unlock()
	}
}

func tryMode(t *testing.T, mode string, most int) outcome {
	direct := testworld.NewDatabase(t)
	r := &trial{T: t, mode: mode, prepared: mode == "cache_statement" && most == 0}
	r.address = startPgBouncerOf(t, direct, testworld.BouncerConfig{Connections: 3, Statements: most}) + "&default_query_exec_mode=" + mode
	r.logger = slog.New(slog.NewTextHandler(&r.logged, nil))
	for range 4 {
		pool := testworld.Connect(t, r.address, testworld.FourConnections)
		r.pools = append(r.pools, pool)
		r.limiters = append(r.limiters, testworld.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true, Logger: r.logger}))
	}
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 60, Period: 100_000 * time.Hour, OnError: limiter.FailOpen}
	r.exact(p)
	r.verbs()
	r.inTx()
	r.got.warned = strings.Contains(r.logged.String(), "default_query_exec_mode=exec")
	r.janitor()
	r.doctor()
	r.command()
	if testworld.Level(t, r.limiters[0], p, "shared") > 60 {
		t.Error("the limit was exceeded")
	}
	return r.got
}

// exact: a limit that all request is exact; what a pooler loses does not fail open.
func (r *trial) exact(p limiter.Policy) {
	var all sync.WaitGroup
	var allowed, degraded atomic.Int64
	for i := range 16 {
		all.Go(func() {
			for range 10 {
				answer, err := r.limiters[i%4].Allow(r.Context(), p, "shared")
				r.count(&r.got.verbs, err)
				if answer.Source == limiter.SourceDegraded {
					degraded.Add(1)
				} else if answer.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := allowed.Load(); n > 60 || n+degraded.Load() < 60 && r.got.verbs == 0 || !late(degraded.Load(), &r.logged) {
		r.Errorf("allowed %d of a limit of 60, %d without a decision; logged %s", n, degraded.Load(), &r.logged)
	}
}

// wide is a limit that these tests do not reach.
var wide = limiter.Policy{Name: "wide", Algorithm: limiter.GCRA, Limit: 1e6, Period: time.Hour}

// as returns a policy with another algorithm.
func as(a limiter.Algorithm, p limiter.Policy) limiter.Policy {
	p.Algorithm = a
	return p
}

// verbs makes every call, from four limiters at once.
func (r *trial) verbs() {
	ctx := r.Context()
	log, queue := as(limiter.SlidingWindowLog, wide), as(limiter.LeakyBucketQueue, wide)
	var all sync.WaitGroup
	for i, l := range r.limiters {
		all.Go(func() {
			key := fmt.Sprint("k", i)
			for range 3 {
				for _, verb := range []func() error{
					func() error { _, err := l.AllowAll(ctx, wide.Request(key, 1), log.Request(key, 2)); return err },
					func() error { _, err := l.AllowUpTo(ctx, wide, key, 5); return err },
					func() error { _, err := l.Charge(ctx, log, key, 3); return err },
					func() error { _, err := l.Refund(ctx, wide, key, 2); return err },
					func() error { _, err := l.Check(ctx, wide, key, 1); return err },
					func() error { _, err := l.Usage(ctx, wide, key); return err },
					func() error { return l.Wait(ctx, queue, key, 1) },
					func() error { return l.Block(ctx, wide, "other", time.Second) },
					func() error {
						r, err := l.Reserve(ctx, wide.Request(key, 4), time.Hour)
						if err == nil {
							_, err = l.Settle(ctx, r.ID, 2)
						}
						return err
					},
					func() error {
						_, err := l.Do(ctx, limiter.Request{Policy: wide, Key: key, Cost: 1, IdempotencyKey: "once"})
						return err
					},
				} {
					r.count(&r.got.verbs, verb())
				}
			}
		})
	}
	all.Wait()
}

// inTx decides in 40 transactions.
func (r *trial) inTx() {
	log := as(limiter.SlidingWindowLog, wide)
	for n := range 40 {
		r.count(&r.got.inTx, pgx.BeginFunc(r.Context(), r.pools[n%4], func(tx pgx.Tx) error {
			_, err := r.limiters[n%4].InTx(tx).AllowAll(r.Context(), wide.Request("tx", 1), log.Request("tx", 1))
			return err
		}))
	}
}

// janitor sweeps. Its statements are prepared, if at all, one connection at a time.
func (r *trial) janitor() {
	j, err := janitor.New(r.pools[0], &janitor.Config{Logger: r.logger})
	if err != nil {
		r.Fatal(err)
	}
	if _, err = j.Sweep(r.Context()); !pooler.Lost(err) || !r.prepared {
		r.count(&r.got.other, err)
	}
	_, err = janitor.ReadState(r.Context(), r.pools[0])
	r.count(&r.got.other, err)
}

// doctor runs twice: the second time it meets what the first one prepared.
func (r *trial) doctor() {
	for _, pool := range r.pools[:2] {
		report, err := doctor.Run(r.Context(), pool, nil)
		r.count(&r.got.other, err)
		for _, c := range report.Checks {
			if c.Name == "pooler" {
				r.got.doctor = c.Verdict
				r.Logf("%s", c.Message)
			}
			if strings.Contains(c.Message, "not checked") {
				r.Errorf("%+v", c)
			}
		}
	}
}

func (r *trial) command() {
	for _, args := range [][]string{{"allow", "--limit", "1000", "--period", "1h", "k"}, {"janitor", "--once"}, {"migrate", "status"}, {"doctor", "--only", "tables,grants"}} {
		code, _, said := testworld.Pglimit(r.T, r.address, args...)
		if code != 0 && !(r.prepared && strings.Contains(said, "default_query_exec_mode")) {
			r.count(&r.got.other, errors.New(said))
		}
	}
}
