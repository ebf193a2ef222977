package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/bench/servers"
)

// bench is a run in progress.
type bench struct {
	options
	postgres *servers.Postgres
	redis    *servers.Redis
	env      *contender.Env
	main     []contender.Contender
	amounts  []contender.Contender
	logs     []contender.Contender
	keys     []string
	report   report.Run
	cells    int // to measure, for progress
	measured int
}

// start starts the servers.
func start(ctx context.Context, o options) (_ *bench, err error) {
	b := &bench{options: o, keys: measure.Keys(o.keys)}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	b.choose()
	if b.count() == 0 && !b.wants(denial) {
		return nil, errors.New("nothing to measure: no cell has these contenders and callers")
	}
	progress("starting PostgreSQL and Redis")
	if b.postgres, err = servers.StartPostgres(ctx); err != nil {
		return nil, err
	}
	if b.redis, err = servers.StartRedis(ctx); err != nil {
		return nil, err
	}
	if b.env, err = contender.NewEnv(ctx, b.postgres, b.redis); err != nil {
		return nil, err
	}
	b.report = report.Run{
		Quick: o.quick, Rounds: o.rounds, Warmup: o.warmup, Duration: o.duration, KeyCount: o.keys,
	}
	for _, c := range slices.Concat(b.main, b.amounts, b.logs) {
		b.report.Contenders = append(b.report.Contenders, report.Contender{ID: c.ID, What: c.What, Server: c.Server, Keeps: c.Keeps})
	}
	b.cells = b.count() * o.rounds
	progress("%d cells: %v and some", b.cells, (time.Duration(b.cells) * (o.warmup + o.duration)).Round(time.Second))
	return b, b.facts()
}

// close ends the servers that were started.
func (b *bench) close() (err error) {
	if b.env != nil {
		b.env.Close()
	}
	if b.redis != nil {
		err = b.redis.Close()
	}
	if b.postgres != nil {
		err = errors.Join(err, b.postgres.Close())
	}
	return err
}

// facts records the conditions of the figures.
func (b *bench) facts() error {
	sync, err := servers.SyncTime()
	if err != nil {
		return err
	}
	modules := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			modules[m.Path] = m.Version
		}
	}
	b.report.Facts = []report.Fact{
		{Name: "When", Value: time.Now().UTC().Format("2006-01-02")},
		{Name: "Machine", Value: fmt.Sprintf("%s, %d cores, %s/%s; a written page takes %v to reach the disk", model(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, sync.Round(time.Microsecond))},
		{Name: "Go", Value: fmt.Sprintf("%s, GOMAXPROCS %d", runtime.Version(), runtime.GOMAXPROCS(0))},
		{Name: "PostgreSQL", Value: fmt.Sprintf("%s, %s, else its defaults; by TCP on 127.0.0.1", b.postgres.Version(), b.postgres.Settings())},
		{Name: "Redis", Value: fmt.Sprintf("%s, its defaults; by TCP on 127.0.0.1", b.redis.Version())},
		{Name: "Redis persistence", Value: servers.RedisPersistence},
		{Name: "pgx", Value: fmt.Sprintf("%s, one pool of %d connections for all; its sessions are at synchronous_commit = on but where a contender says off: Relaxed lowers it by itself", modules["github.com/jackc/pgx/v5"], servers.PoolSize)},
		{Name: "go-redis", Value: fmt.Sprintf("%s, its default pool of %d connections", modules["github.com/redis/go-redis/v9"], b.env.GoRedis.Options().PoolSize)},
		{Name: "rueidis", Value: modules["github.com/redis/rueidis"] + ", its default pipelining"},
		{Name: "redis_rate", Value: modules["github.com/go-redis/redis_rate/v10"]},
		{Name: "throttled", Value: modules["github.com/throttled/throttled/v2"]},
		{Name: "Limit", Value: "1 per second and 1,000,000,000 at once, for all but the sliding logs"},
		{Name: "Zipf", Value: fmt.Sprintf("exponent %v", measure.ZipfExponent)},
	}
	return nil
}

// model names the processor, if the system does.
func model() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// checkExact sends 20 requests with a limit of 10 to every contender, from four callers at
// once, and expects 10 to be allowed.
func (b *bench) checkExact(ctx context.Context) error {
	const limit, requests, callers = 10, 20, 4
	progress("checking that each allows %d of %d at a limit of %d", limit, requests, limit)
	rule := contender.Rule{Name: "exact", Limit: limit, Period: 24 * time.Hour, Burst: limit}
	for _, c := range slices.Concat(b.main, b.amounts, b.logs) {
		d, err := b.open(ctx, c, rule)
		if err != nil {
			return err
		}
		var allowed atomic.Int64
		err = inParallel(callers, func(int) error {
			for range requests / callers {
				ok, err := d.Decide(ctx, "exact:"+c.ID)
				if err != nil {
					return err
				}
				if ok {
					allowed.Add(1)
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", c.ID, err)
		}
		if d, differ := d.(contender.AmountDecider); differ {
			if !contender.Exact(d, limit, requests) {
				return fmt.Errorf("%s allowed %v units of %d requests at a limit of %d", c.ID, d.Allowed(), requests, limit)
			}
		} else if n := allowed.Load(); n != limit {
			return fmt.Errorf("%s allowed %d of %d at a limit of %d", c.ID, n, requests, limit)
		}
	}
	return nil
}

// preload has every contender decide once for each key that is measured, so that measured
// decisions find their rows.
func (b *bench) preload(ctx context.Context) error {
	const callers = 128
	keys := b.keys
	if !b.wants(string(report.Even)) && !b.wants(string(report.Zipf)) {
		keys = keys[:1]
	}
	done := map[string]bool{}
	for _, c := range b.main {
		if done[c.State] {
			continue
		}
		done[c.State] = true
		progress("filling in %d keys for %s", len(keys), c.ID)
		d, err := b.open(ctx, c, contender.Far)
		if err != nil {
			return err
		}
		err = inParallel(callers, func(n int) error {
			for i := n; i < len(keys); i += callers {
				if _, err := d.Decide(ctx, keys[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", c.ID, err)
		}
	}
	for _, sql := range []string{"VACUUM (ANALYZE)", "CHECKPOINT"} {
		if _, err := b.postgres.Pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// open creates a contender's Decider and sets its sessions' synchronous_commit.
func (b *bench) open(ctx context.Context, c contender.Contender, r contender.Rule) (contender.Decider, error) {
	d, err := c.Open(b.env, r)
	if err == nil && c.Commit != "" {
		err = b.postgres.SetCommit(ctx, c.Commit)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.ID, err)
	}
	return d, nil
}

// inParallel runs f that many times at once and joins the errors.
func inParallel(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
