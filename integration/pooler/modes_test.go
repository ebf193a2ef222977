package pooler

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
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

func tryMode(t *testing.T, mode string, most int) (got outcome) {
	ctx := t.Context()
	direct := testworld.NewDatabase(t)
	address := startPgBouncerOf(t, direct, testworld.BouncerConfig{Connections: 3, Statements: most}) + "&default_query_exec_mode=" + mode
	var logged testworld.Buffer
	logger := slog.New(slog.NewTextHandler(&logged, nil))
	var limiters []*limiter.Limiter
	var pools []*pgxpool.Pool
	for range 4 {
		pool := testworld.Connect(t, address, testworld.FourConnections)
		pools = append(pools, pool)
		limiters = append(limiters, testworld.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true, Logger: logger}))
	}
	count := func(into *int, err error) {
		if err != nil {
			t.Logf("%v", err)
			*into++
		}
	}

	// A limit that all request is exact: what a pooler loses does not fail open.
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 60, Period: 100_000 * time.Hour, OnError: limiter.FailOpen}
	var mu sync.Mutex
	var all sync.WaitGroup
	var allowed, degraded int64
	for i := range 16 {
		all.Go(func() {
			for range 10 {
				r, err := limiters[i%4].Allow(ctx, p, "shared")
				mu.Lock()
				count(&got.verbs, err)
				if r.Source == limiter.SourceDegraded {
					degraded++
				} else if r.Allowed {
					allowed++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if allowed > 60 || allowed+degraded < 60 && got.verbs == 0 || !late(degraded, &logged) {
		t.Errorf("allowed %d of a limit of 60, %d without a decision; logged %s", allowed, degraded, &logged)
	}

	// Every verb, from four limiters at once.
	wide := limiter.Policy{Name: "wide", Algorithm: limiter.GCRA, Limit: 1e6, Period: time.Hour}
	log, queue := wide, wide
	log.Algorithm, queue.Algorithm = limiter.SlidingWindowLog, limiter.LeakyBucketQueue
	for i, l := range limiters {
		all.Go(func() {
			key := fmt.Sprint("k", i)
			for range 3 {
				verbs := []func() error{
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
				}
				for _, verb := range verbs {
					err := verb()
					mu.Lock()
					count(&got.verbs, err)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()

	// In transactions.
	for n := range 40 {
		count(&got.inTx, pgx.BeginFunc(ctx, pools[n%4], func(tx pgx.Tx) error {
			_, err := limiters[n%4].InTx(tx).AllowAll(ctx, wide.Request("tx", 1), log.Request("tx", 1))
			return err
		}))
	}
	got.warned = strings.Contains(logged.String(), "default_query_exec_mode=exec")

	// The janitor, the doctor and the command.
	j, err := janitor.New(pools[0], &janitor.Config{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	// Its statements are prepared, if at all, one connection at a time.
	_, err = j.Sweep(ctx)
	if pooler.Lost(err) && mode == "cache_statement" && most == 0 {
		err = nil
	}
	count(&got.other, err)
	_, err = janitor.ReadState(ctx, pools[0])
	count(&got.other, err)
	for _, pool := range pools[:2] { // a second run meets what the first one prepared
		report, err := doctor.Run(ctx, pool, nil)
		count(&got.other, err)
		for _, c := range report.Checks {
			if c.Name == "pooler" {
				got.doctor = c.Verdict
				t.Logf("%s", c.Message)
			}
			if strings.Contains(c.Message, "not checked") {
				t.Errorf("%+v", c)
			}
		}
	}
	for _, args := range [][]string{{"allow", "--limit", "1000", "--period", "1h", "k"}, {"janitor", "--once"}, {"migrate", "status"}, {"doctor", "--only", "tables,grants"}} {
		cmd := testworld.Command(t, address, args...)
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Run(); err != nil && !(mode == "cache_statement" && most == 0 && strings.Contains(said.String(), "default_query_exec_mode")) {
			count(&got.other, errors.Join(err, errors.New(said.String())))
		}
	}
	if testworld.Level(t, limiters[0], p, "shared") > 60 {
		t.Error("the limit was exceeded")
	}
	return got
}
