package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/proc"
	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/internal/localpg"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/migrations/citus"
	"github.com/pglimit/pglimit/pglimittest"
)

// placed is where the tables of keys are.
type placed struct {
	name            string
	workers, shards int // none: on the server that is asked
}

const (
	clusterKeys    = 10_000
	clusterCallers = 256
	clusterPool    = 32
)

// cluster measures keys on a Citus cluster of a coordinator and two workers, beside one
// server. Without Citus it measures nothing.
func (b *bench) cluster() part {
	var p part
	if _, _, err := localpg.FindWith("citus"); err != nil {
		return p
	}
	p.sections = []report.Section{
		{
			Name: "cluster", Title: "10,000 keys on a Citus cluster of this machine", By: "callers", Figure: report.PerSecond,
			More: []report.Figure{report.Server, report.Client, report.P50, report.P99},
			Note: "Durable. Server adds up the processor time of all nodes. They share one machine, so Server says more about separate machines than the rate does.",
		},
		{
			Name: "cluster-held", Title: "a row of a worker is held, 1,000 requests a second", By: "callers", Figure: report.P99, More: []report.Figure{report.P50, report.P999},
			Note: "Of the other keys. Held: another transaction has locked a row, for which one more request comes every 50 ms.",
		},
	}
	servers := new(clusterServers)
	p.prepare = servers.start
	p.close = servers.close
	for _, at := range []placed{
		{"one server", 0, 0}, {"1 worker, 2 shards", 1, 2}, {"2 workers, 2 shards", 2, 2}, {"2 workers, 4 shards", 2, 4},
		{"2 workers, 8 shards", 2, 8}, {"2 workers, 16 shards", 2, 16}, {"2 workers, 64 shards", 2, 64},
	} {
		for _, callers := range []int{clusterCallers, 4 * clusterCallers} {
			p.add("cluster", at.name, strconv.Itoa(callers), func(ctx context.Context, _ int) (report.Figures, error) {
				d, clock, err := servers.open(ctx, at, b.name())
				if err != nil {
					return nil, err
				}
				defer d.pool.Close()
				s, err := measure.Run(ctx, measure.Load{
					Callers: callers, Warmup: b.long().warmup, Duration: b.long().duration,
					Keys: measure.Keys(clusterKeys), Sequence: measure.Evenly(clusterKeys, 1),
					Decide: d.Decide, Client: proc.Self, Server: clock,
				})
				return figures(s), errors.Join(err, d.Close())
			})
		}
	}
	for _, held := range []string{"quiet", "held"} {
		p.add("cluster-held", held, "50", func(ctx context.Context, _ int) (report.Figures, error) {
			d, _, err := servers.open(ctx, placed{"", 2, 4}, b.name())
			if err != nil {
				return nil, err
			}
			defer d.pool.Close()
			if held == "held" {
				release, err := d.hold(ctx)
				if err != nil {
					return nil, err
				}
				defer release()
			}
			s, err := b.byClock(ctx, &d.Limiter, time.Now(), otherCallers, measure.Keys(clusterKeys), rate)
			if err != nil {
				return nil, err
			}
			return figures(s[1]), nil
		})
	}
	return p
}

// clusterServers are the servers by their number of nodes, with their pools by database.
type clusterServers struct {
	one, many *pglimittest.Server
	databases map[placed]string
}

// start starts one server and a cluster, both on Unix sockets.
func (c *clusterServers) start(ctx context.Context) (err error) {
	c.databases = map[placed]string{}
	was := os.Getenv(backend)
	defer func() { err = errors.Join(err, os.Setenv(backend, was)) }()
	for _, kind := range []string{"local", "citus"} {
		if err := os.Setenv(backend, kind); err != nil {
			return err
		}
		s, err := pglimittest.StartOwn(ctx, nil, pglimittest.Setting("fsync", "on"), pglimittest.Setting("full_page_writes", "on"),
			pglimittest.Setting("shared_buffers", "256MB"), pglimittest.Setting("ssl", "off"))
		if err != nil {
			return err
		}
		if c.one == nil {
			c.one = s
		} else {
			c.many = s
		}
	}
	return nil
}

// backend is the variable by which pglimittest chooses a server.
const backend = "PGLIMIT_TEST_BACKEND"

func (c *clusterServers) close() (err error) {
	for _, s := range []*pglimittest.Server{c.one, c.many} {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return err
}

// clusterLimiter is a Limiter with a separate pool.
type clusterLimiter struct {
	contender.Limiter
	pool *pgxpool.Pool
}

// open returns a limiter of such a database, and the clock of all nodes.
func (c *clusterServers) open(ctx context.Context, at placed, policy string) (_ *clusterLimiter, _ proc.Clock, err error) {
	server := c.many
	if at.shards == 0 {
		server = c.one
	}
	at.name = ""
	address, made := c.databases[at]
	if !made {
		if address, _, err = server.CreateDatabase(ctx, "bench"); err != nil {
			return nil, nil, err
		}
		c.databases[at] = address
	}
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns, config.MinConns = clusterPool, clusterPool
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	if !made {
		if err := prepareCluster(ctx, pool, at); err != nil {
			return nil, nil, err
		}
	}
	var clocks []proc.Clock
	for _, s := range append([]*pglimittest.Server{server}, server.Workers()...) {
		conn, err := pgx.Connect(ctx, s.URL())
		if err != nil {
			return nil, nil, err
		}
		clocks = append(clocks, proc.Tree(proc.Parent(int(conn.PgConn().PID()))))
		if err := conn.Close(ctx); err != nil {
			return nil, nil, err
		}
	}
	l, err := limiter.New(pool, &limiter.Config{Timeout: time.Minute, DisableDenyCache: true})
	p := limiter.Policy{Name: policy, Algorithm: limiter.TokenBucket, Limit: 1e9, Period: time.Second}
	return &clusterLimiter{contender.Limiter{Limiter: l, Policy: p}, pool}, sum(clocks), err
}

// prepareCluster makes and distributes the tables.
func prepareCluster(ctx context.Context, pool *pgxpool.Pool, at placed) error {
	if err := migrations.Up(ctx, pool); err != nil || at.shards == 0 {
		return err
	}
	_, err := pool.Exec(ctx, `SELECT citus_set_node_property(nodename, nodeport, 'shouldhaveshards', place <= $1)
		FROM (SELECT nodename, nodeport, row_number() OVER (ORDER BY groupid) AS place FROM pg_dist_node WHERE groupid > 0) AS n`, at.workers)
	if err != nil {
		return err
	}
	return citus.Distribute(ctx, pool, at.shards)
}

// sum returns the clock of several.
func sum(clocks []proc.Clock) proc.Clock {
	return func() (all time.Duration, err error) {
		for _, c := range clocks {
			used, err := c()
			if err != nil {
				return 0, err
			}
			all += used
		}
		return all, nil
	}
}

// hold locks a row that no other request is for, and makes requests for it that wait, until
// release is called.
func (d *clusterLimiter) hold(ctx context.Context) (release func(), err error) {
	tx, err := d.pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := d.InTx(tx).Allow(ctx, d.Policy, hotKey); err != nil {
		return nil, errors.Join(err, tx.Rollback(ctx))
	}
	ctx, stop := context.WithCancel(ctx)
	go func() {
		for every := time.NewTicker(time.Second / 20); ctx.Err() == nil; <-every.C {
			go func() { _, _ = d.Allow(ctx, d.Policy, hotKey) }() // it waits until the end
		}
	}()
	return func() {
		stop()
		_ = tx.Rollback(context.WithoutCancel(ctx)) // the database goes too
	}, nil
}
