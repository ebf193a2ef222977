package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/servers"
	"github.com/pglimit/pglimit/limiter"
)

// cell is a set of contenders that do the same work.
type cell struct {
	What       string
	Callers    int
	Keys       int
	Two        bool   // keys in each decision
	Commit     string // synchronous_commit of the sessions
	Contenders []contender
	// Samples are by contender and round; Counting is the median time of the counting
	// alone, if measured.
	Samples  [][]measure.Sample
	Counting [][]time.Duration
}

// cells are all cells.
func cells() (list []*cell) {
	for _, callers := range []int{1, 16} {
		list = append(list, &cell{
			What: "an order and its spend", Callers: callers, Keys: 10_000, Commit: "on",
			Contenders: []contender{orderBare, orderSpend},
		})
	}
	for _, commit := range []string{"off", "on"} {
		list = append(list, &cell{
			What: "two of ten hot keys", Callers: 64, Keys: 10, Two: true, Commit: commit,
			Contenders: []contender{twoBare, twoAll, twoInside},
		})
	}
	return list
}

// measure measures the cell: contenders take turns in each round, every other round
// backwards.
func (c *cell) measure(ctx context.Context, server *servers.Postgres, p plan) error {
	if err := server.SetCommit(ctx, c.Commit); err != nil {
		return err
	}
	c.Samples = make([][]measure.Sample, len(c.Contenders))
	c.Counting = make([][]time.Duration, len(c.Contenders))
	for round := range p.Rounds {
		order := make([]int, len(c.Contenders))
		for i := range order {
			order[i] = i
		}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, i := range order {
			fmt.Fprintf(os.Stderr, "spend: %s, %d callers, synchronous_commit = %s, round %d of %d: %s\n",
				c.What, c.Callers, c.Commit, round+1, p.Rounds, c.Contenders[i].ID)
			name := fmt.Sprintf("spend-%s-%d-%d-%d", c.Commit, c.Callers, i, round)
			if err := c.one(ctx, server.Pool, p, i, name); err != nil {
				return fmt.Errorf("%s: %w", c.Contenders[i].ID, err)
			}
		}
	}
	return server.SetCommit(ctx, "on")
}

// one measures the i-th contender once, under a separate policy name, and compares what it
// counted with what was requested.
func (c *cell) one(ctx context.Context, pool *pgxpool.Pool, p plan, i int, name string) error {
	l, err := limiter.New(pool, &limiter.Config{DisableDenyCache: true, Timeout: decisionTimeout})
	if err != nil {
		return err
	}
	e := &env{pool: pool, limiter: l, policy: policy(name, limiter.Durable), keys: measure.Keys(c.Keys)}
	if c.Commit == "off" {
		e.policy.Durability = limiter.Relaxed
	}
	var mu sync.Mutex
	times := hdrhistogram.New(100, int64(5*time.Minute), 3)
	timed := func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		_ = times.RecordValue(int64(d)) // what is longer than its range ended the run
	}
	var units atomic.Int64
	contender := c.Contenders[i]
	s, err := measure.Run(ctx, measure.Load{
		Callers: c.Callers, Warmup: p.Warmup, Duration: p.Length,
		Keys: e.keys, Sequence: measure.Evenly(c.Keys),
		Decide: func(ctx context.Context, key string) (bool, error) {
			keys := []string{key}
			if c.Two {
				keys = pair(e.keys)
			}
			n := int64(len(keys))
			err := contender.decide(ctx, e, keys, timed)
			if err == nil {
				units.Add(n)
			}
			return err == nil, err
		},
	})
	if err != nil {
		return err
	}
	used, err := contender.used(ctx, e)
	if err != nil {
		return err
	}
	if n := int64(math.Round(used)); n != units.Load() {
		return fmt.Errorf("%d units were counted, and %d allowed", n, units.Load())
	}
	c.Samples[i] = append(c.Samples[i], s)
	c.Counting[i] = append(c.Counting[i], time.Duration(times.ValueAtQuantile(50)))
	return nil
}

// trips is a connection that counts its round trips: what is sent after something was
// received.
type trips struct {
	net.Conn
	n       *atomic.Int64
	sending atomic.Bool
}

func (t *trips) Write(b []byte) (int, error) {
	if !t.sending.Swap(true) {
		t.n.Add(1)
	}
	return t.Conn.Write(b)
}

func (t *trips) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	if n > 0 {
		t.sending.Store(false)
	}
	return n, err
}

// spendTrips counts the round trips of a spend in a transaction.
func spendTrips(ctx context.Context, config *pgxpool.Config) (int64, error) {
	var n atomic.Int64
	config.MaxConns, config.MinConns = 1, 1
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &trips{Conn: conn, n: &n}, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	l, err := limiter.New(pool, nil)
	if err != nil {
		return 0, err
	}
	var took int64
	for range 2 { // at first the statement is prepared
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			before := n.Load()
			r, err := l.InTx(tx).Allow(ctx, policy("trips", limiter.Durable), "k")
			took = n.Load() - before
			return allowed(r.Allowed, err)
		})
		if err != nil {
			return 0, err
		}
	}
	return took, nil
}
