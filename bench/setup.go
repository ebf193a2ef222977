package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/bench/servers"
)

// bench is a run in progress.
type bench struct {
	options
	env      *contender.Env
	keys     []string
	picture  string // of a burst; empty: not measured
	report   report.Run
	exact    bool // checkExact has run
	named    int  // names given by name
	cells    int  // to measure, in all rounds, for progress
	measured int
}

func newBench(o options) *bench {
	n := 100_000
	if o.quick {
		n = 10_000
	}
	return &bench{options: o, keys: measure.Keys(n), report: report.Run{Quick: o.quick}}
}

// name returns a policy's or database's name that no other measurement has.
func (b *bench) name() string {
	b.named++
	return fmt.Sprintf("bench_%d", b.named)
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
	b.report.Notes = []string{
		fmt.Sprintf("One run of `make bench`, medians of %d rounds: hot, even, zipf and log %v each time after %v of warming up, the others %v after %v, growth-attack longer.",
			b.rounds, b.short().duration, b.short().warmup, b.long().duration, b.long().warmup),
		"Columns after the settings are of the last one. Contenders take turns. Callers, PostgreSQL and Redis share the machine, so read the ratios.",
		"Callers send again as soon as they are answered, except in load. Limits are far and the deny cache is off, except in denial and growth-attack.",
		"Client and server: processor time per decision of this process, and of all processes of the deciding server.",
		"First each contender allowed 10 of 20 at a limit of 10. After each cell it had counted what it allowed.",
		"bare: an upsert that counts and does not limit. single: pglimit, one statement per decision. batch: pglimit's default. amounts: each request has another one.",
		"lua-rueidis: a token bucket in Lua, by a client that pipelines. redis_rate: GCRA in Lua, by go-redis. log-sorted-set: in Lua, by rueidis. Others in denial, spend, load and growth are batch.",
		"relaxed and off: on disk within 0.6s of the answer; durable and on: before it. Redis keeps nothing.",
	}
	b.report.Facts = []report.Fact{
		{Name: "When", Value: time.Now().UTC().Format(time.DateOnly)},
		{Name: "Machine", Value: fmt.Sprintf("%s, %d cores, %s/%s, %s; a written page takes %v to reach the disk", model(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), sync.Round(time.Microsecond))},
		{Name: "PostgreSQL", Value: fmt.Sprintf("%s, %s, else its defaults; by TCP; pgx %s, a pool of %d", b.env.Postgres.Version(), servers.Settings(), modules["github.com/jackc/pgx/v5"], servers.PoolSize)},
		{Name: "Redis", Value: fmt.Sprintf("%s, no persistence, else its defaults; by TCP; go-redis %s, a pool of %d; rueidis %s; redis_rate %s",
			b.env.Redis.Version, modules["github.com/redis/go-redis/v9"], b.env.GoRedis.Options().PoolSize,
			modules["github.com/redis/rueidis"], modules["github.com/go-redis/redis_rate/v10"])},
	}
	return nil
}

// model names the processor, if the system does.
func model() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	if m := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return runtime.GOARCH
}

// open creates a contender's Decider and sets its sessions' synchronous_commit.
func (b *bench) open(ctx context.Context, c contender.Contender, r contender.Rule) (contender.Decider, error) {
	d, err := c.Open(b.env, r)
	if err == nil && c.Commit != "" {
		err = servers.SetCommit(ctx, b.env.Pool, c.Commit)
	}
	return d, err
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
