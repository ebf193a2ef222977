// Package prove puts a database's limits under contention and holds what they
// admit to what their algorithms allow.
//
// Many workers over several pools ask for a few keys, in asks of 1 to 3 units.
// Some ask in transactions, of which half are rolled back; some go away before
// they have an answer; and now and then the server ends one of the connections.
// Some keys are asked for under two limits in turn, and the rows of some are held
// by a transaction meanwhile.
// A unit is admitted when a client was told so and, in a transaction, the commit
// was acknowledged. An ask without an answer is unknown: it may be counted, but
// nobody was admitted by it, so that more than allowed is always a fault.
package prove

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/internal/prove/contest"
	"github.com/pglimit/pglimit/limiter"
)

// ErrConfig is a Config that is out of bounds.
var ErrConfig = errors.New("pglimit: prove")

// Bounds of Config.
const (
	maxFor     = 24 * time.Hour
	maxWorkers = 1000
	pools      = 4
)

// Config says how hard a proof tries.
type Config struct {
	// For is how long, shared by the algorithms: 1 millisecond each to a day.
	For time.Duration
	// Workers is how many ask at once, over a connection each: 1 to 1,000.
	Workers int
	// Kill has the server end connections of the proof's own, about four a
	// second. Behind a pooler none are ended: others may share them.
	Kill bool
	// Progress, if set, is called when an algorithm's turn begins, one at a time.
	Progress func(a limiter.Algorithm)
}

// Validate names what is out of bounds, and its value.
func (c Config) Validate() error {
	if least := time.Duration(len(limiter.Algorithms())) * time.Millisecond; c.For < least || c.For > maxFor {
		return fmt.Errorf("%w: For is %v: take %v to %v", ErrConfig, c.For, least, maxFor)
	}
	if c.Workers < 1 || c.Workers > maxWorkers {
		return fmt.Errorf("%w: Workers is %d: take 1 to %d", ErrConfig, c.Workers, maxWorkers)
	}
	return nil
}

// Report is what a proof saw.
type Report struct {
	// Holds reports whether no key was admitted more than its policy allows, and
	// whether other keys were answered while a row was held. Through a pooler only
	// the first counts: it may have too few connections for the second.
	Holds bool `json:"holds"`
	// Took is how long it took, in seconds.
	Took float64 `json:"took_s"`
	// Workers asked at once, over so many Pools.
	Workers int `json:"workers"`
	Pools   int `json:"pools"`
	// Pooler is whether a connection pooler stood between them and the server.
	Pooler bool `json:"pooler"`
	// Killed is how many connections the server was told to end.
	Killed int64 `json:"killed"`
	// Algorithms has one entry for each.
	Algorithms []contest.Algorithm `json:"algorithms"`
}

// Parts of a Report.
type (
	Part = contest.Part
	Held = contest.Held
)

// Run runs a proof over the database of pool, with connections of its own, and
// forgets its keys at the end, whatever happened. With an error comes what was
// seen until then. pool needs one free connection or two;
// the proof opens one for each worker and one more.
func Run(ctx context.Context, pool *pgxpool.Pool, cfg Config) (report Report, err error) {
	if err := cfg.Validate(); err != nil {
		return report, err
	}
	behindPooler, err := pooler.Between(ctx, pool)
	if err != nil {
		return report, fmt.Errorf("connect: %w", err)
	}
	cfg.Kill = cfg.Kill && !behindPooler
	run := strings.ToLower(rand.Text())
	name := "pglimit prove " + run
	clients, err := newClients(ctx, pool, name, min(pools, cfg.Workers), cfg.Workers)
	if err != nil {
		return report, err
	}
	defer func() {
		closeAll(clients)
		if behindPooler {
			err = pooler.ExplainIn(pool.Config().ConnConfig.DefaultQueryExecMode, err)
		}
		if notThere := errors.Is(err, limiter.ErrNotMigrated); !notThere {
			err = errors.Join(err, cleanUp(ctx, pool, name, run, behindPooler))
		}
	}()
	report = Report{Holds: true, Workers: cfg.Workers, Pools: len(clients) - 1, Pooler: behindPooler}
	start := time.Now()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	killing := make(chan struct{})
	go func() {
		defer close(killing)
		if !cfg.Kill {
			return
		}
		killed, err := killNowAndThen(ctx, pool, name)
		report.Killed = killed
		if err != nil {
			stop(err)
		}
	}()
	algorithms, err := proveAll(ctx, pool, clients, cfg, run)
	stop(nil)
	<-killing
	report.Algorithms, report.Took = algorithms, time.Since(start).Seconds()
	for _, a := range algorithms {
		report.Holds = report.Holds && len(a.Exceeded) == 0 && (a.Held.Stalls == 0 || behindPooler)
	}
	return report, err
}

// proveAll takes the algorithms in turn; what was seen of the last before an
// error is not held to anything, and left out.
func proveAll(ctx context.Context, pool *pgxpool.Pool, clients []*dbClient, cfg Config, run string) (all []contest.Algorithm, err error) {
	var asked []contest.Client
	for _, c := range clients {
		asked = append(asked, c)
	}
	clock := func(ctx context.Context) (now time.Time, err error) {
		err = pool.QueryRow(ctx, "SELECT clock_timestamp()", pooler.Mode(pool)).Scan(&now)
		return now, err
	}
	each := cfg.For / time.Duration(len(limiter.Algorithms()))
	for _, algorithm := range limiter.Algorithms() {
		if cfg.Progress != nil {
			cfg.Progress(algorithm)
		}
		last := len(asked) - 1
		seen, err := contest.New(asked[:last], asked[last], cfg.Workers, algorithm, run, each).Contend(ctx, each, clock)
		if contest.Hopeless(err) {
			return all, err // the same for every algorithm
		}
		if err != nil {
			return all, fmt.Errorf("%s: %w", algorithm, err)
		}
		all = append(all, seen)
	}
	return all, nil
}
