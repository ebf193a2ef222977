package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/proc"
	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/bench/wire"
)

const (
	serveConns = 64
	// envoys is the program that is measured beside ours.
	envoys = "github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36"
)

// Limits that deny nothing, of many keys and of one. A lease of the one has 10,000 units.
const (
	servePolicies = `policies:
- {name: user, algorithm: token_bucket, limit: 1, period: 1s, burst: 1000000000, durability: relaxed}
- {name: hot, algorithm: token_bucket, limit: 1000000, period: 1s, durability: relaxed, lease: 0.01}
`
	serveOurs = `domain: bench
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 4000000000, pglimit: {durability: relaxed}}
- key: hot
  rate_limit: {unit: second, requests_per_unit: 1000000, pglimit: {algorithm: token_bucket, durability: relaxed, lease: 0.01}}
`
	serveTheirs = `domain: bench
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 4000000000}
- key: hot
  rate_limit: {unit: hour, requests_per_unit: 4000000000}
`
)

// gateways are the servers that gateways ask.
type gateways struct {
	dir  string
	list []*gateway
}

// gateway is a server that decides in PostgreSQL or Redis.
type gateway struct {
	name, address string
	dial          func(address, limit string) (wire.Conn, error)
	server        proc.Clock
	program       *contender.Program
}

// serve measures `pglimit serve`, and Envoy's rate limit service by ours and by
// envoyproxy/ratelimit.
func (b *bench) serve() part {
	g := &gateways{list: []*gateway{{name: "http"}, {name: "grpc"}, {name: "envoyproxy/ratelimit"}}}
	p := part{
		sections: []report.Section{{
			Name: "serve", Title: fmt.Sprintf("servers, %d connections", serveConns), By: "keys", Figure: report.PerSecond,
			More: []report.Figure{report.P50, report.P99, report.Service, report.Server, report.Client},
			Note: "http: POST /v1/allow of `pglimit serve`. grpc: `pglimit ratelimit`, Envoy's rate limit service. Beside them " + envoys + ", by gRPC over Redis. One request at a time on each connection. Relaxed; the one key has a lease. Service: processor time of these programs; Server: of PostgreSQL or Redis; Client: of the load.",
		}},
		prepare: func(ctx context.Context) error { return g.start(ctx, b) },
		close:   g.close,
	}
	for _, limit := range []string{"hot", "user"} {
		for _, at := range g.list {
			keys, sequence := b.keys, measure.Evenly(len(b.keys), 2)
			if limit == "hot" {
				keys, sequence = keys[:1], []uint32{0}
			}
			p.add("serve", at.name, strconv.Itoa(len(keys)), func(ctx context.Context, _ int) (report.Figures, error) {
				decide, hangUp, err := at.connect(limit)
				if err != nil {
					return nil, err
				}
				defer hangUp()
				s, err := measure.Run(ctx, measure.Load{
					Callers: serveConns, Warmup: b.long().warmup, Duration: b.long().duration, Keys: keys, Sequence: sequence, Decide: decide,
					Client: proc.Self, Service: at.program.Processor, Server: at.server,
				})
				return figures(s), err
			})
		}
	}
	return p
}

// connect opens the connections. A request uses one that no other does.
func (g *gateway) connect(limit string) (decide func(context.Context, string) (float64, error), hangUp func(), err error) {
	free := make(chan wire.Conn, serveConns)
	hangUp = func() {
		for range len(free) {
			_ = (<-free).Close() // nothing is in flight
		}
	}
	for range serveConns {
		c, err := g.dial(g.address, limit)
		if err != nil {
			hangUp()
			return nil, nil, err
		}
		free <- c
	}
	return func(_ context.Context, key string) (units float64, err error) {
		c := <-free
		allowed, err := c.Allow(key)
		if free <- c; allowed {
			units = 1
		}
		return units, err
	}, hangUp, nil
}

// start builds and starts the servers, and has each decide once for every key.
func (g *gateways) start(ctx context.Context, b *bench) (err error) {
	if g.dir, err = os.MkdirTemp("", "bench"); err != nil {
		return err
	}
	progress("building pglimit and envoyproxy/ratelimit, which takes minutes at first")
	ours, theirs := filepath.Join(g.dir, "pglimit"), filepath.Join(g.dir, "service_cmd")
	for _, args := range [][]string{{"build", "-o", ours, "github.com/pglimit/pglimit/cmd/pglimit"}, {"install", envoys}} {
		build := exec.CommandContext(ctx, "go", args...)
		build.Env = append(os.Environ(), "GOBIN="+g.dir)
		if output, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", args[0], err, output)
		}
	}
	for path, text := range map[string]string{"limits.yaml": servePolicies, "ours/config/bench.yaml": serveOurs, "theirs/config/bench.yaml": serveTheirs} {
		path = filepath.Join(g.dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	database, err := url.Parse(b.env.Postgres.URL())
	if err != nil {
		return err
	}
	database.Path = b.env.Pool.Config().ConnConfig.Database
	postgres, redis := "DATABASE_URL="+database.String(), b.env.Redis
	overHTTP := func(address, limit string) (wire.Conn, error) { return wire.DialHTTP(address, limit) }
	overGRPC := func(address, limit string) (wire.Conn, error) { return wire.DialGRPC(address, "bench", limit) }
	for i, s := range []struct {
		command   string
		dial      func(address, limit string) (wire.Conn, error)
		server    proc.Clock
		variables []string
	}{
		{ours + ` serve --timeout 10s --policies ` + g.dir + `/limits.yaml --http "127.0.0.1:$GRPC_PORT"`, overHTTP, proc.Tree(b.env.Postgres.Postmaster), []string{postgres}},
		{ours + " ratelimit", overGRPC, proc.Tree(b.env.Postgres.Postmaster), []string{postgres, "RUNTIME_SUBDIRECTORY=ours"}},
		{theirs, overGRPC, redis.Processor, []string{
			"RUNTIME_SUBDIRECTORY=theirs", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis.Addr, "REDIS_AUTH=" + redis.Password, "USE_STATSD=false", "LOG_LEVEL=error",
		}},
	} {
		variables := append(s.variables, "RUNTIME_ROOT="+g.dir)
		for _, name := range []string{"", "DEBUG_", "GRPC_"} {
			port, err := contender.FreePort()
			if err != nil {
				return err
			}
			g.list[i].address = port.String() // the last one
			variables = append(variables, name+"HOST=127.0.0.1", fmt.Sprintf("%sPORT=%d", name, port.Port))
		}
		g.list[i].dial, g.list[i].server = s.dial, s.server
		if g.list[i].program, err = contender.StartProgram(s.command, variables...); err != nil {
			return err
		}
		if err := g.list[i].fill(b.keys); err != nil {
			return fmt.Errorf("%s: %w\n%s", g.list[i].name, err, g.list[i].program.Close())
		}
	}
	return nil
}

// fill waits until the server answers, and has it decide for each key, so that measured
// decisions find their rows.
func (g *gateway) fill(keys []string) error {
	const tries, pause = 100, 100 * time.Millisecond
	for range tries {
		if c, err := net.Dial("tcp", g.address); err == nil {
			_ = c.Close()
			break
		}
		time.Sleep(pause)
	}
	decide, hangUp, err := g.connect("user")
	if err != nil {
		return err
	}
	defer hangUp()
	return inParallel(serveConns, func(n int) error {
		for i := n; i < len(keys); i += serveConns {
			if units, err := decide(context.Background(), keys[i]); err != nil || units != 1 {
				return fmt.Errorf("%s: %v units, %w", keys[i], units, err)
			}
		}
		return nil
	})
}

// close ends the servers.
func (g *gateways) close() error {
	for _, s := range g.list {
		if s.program != nil {
			s.program.Close()
		}
	}
	return os.RemoveAll(g.dir)
}
