// Package prove tests a database's limits under contention: it compares what they admit
// with what their algorithms allow.
//
// Many workers over several pools send requests of 1 to 3 units for a few keys:
//   - Some requests are in transactions; half of those are rolled back.
//   - Some clients disconnect before the answer, and the server ends some connections.
//   - Some keys are requested under several plans in turn.
//   - Some keys leak in ticks, or have windows with fixed edges.
//   - Some keys are requested together by AllowAll.
//
// A unit is admitted if a client received that answer and, in a transaction, the commit
// was acknowledged. A request without an answer is unknown: it may be counted, but it is
// not admitted. So more than allowed is always a fault.
package prove

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/limiter"
)

// ErrConfig is in the error for a Config out of bounds.
var ErrConfig = errors.New("pglimit: prove")

// Bounds of Config.
const (
	maxFor     = 24 * time.Hour
	maxWorkers = 1000
	pools      = 4
)

// Config configures a proof.
type Config struct {
	// For is the duration, shared by the algorithms: from 1 millisecond each to a day.
	For time.Duration
	// Workers is the number of concurrent workers, each with a connection: 1 to 1,000.
	Workers int
	// Kill lets the server end connections of the proof, up to four a second. Behind a
	// pooler none are ended, because other clients may share them.
	Kill bool
	// Through, if set, is called before the first request with the description of a pooler
	// that was found.
	Through func(description string)
	// Progress, if set, is called at the start of each algorithm, never concurrently.
	Progress func(a limiter.Algorithm)
}

// Validate returns an ErrConfig that names the field out of bounds and its value.
func (c Config) Validate() error {
	if least := time.Duration(len(limiter.Algorithms())) * time.Millisecond; c.For < least || c.For > maxFor {
		return fmt.Errorf("%w: For is %s: use %s to %s", ErrConfig, duration.Format(c.For), duration.Format(least), duration.Format(maxFor))
	}
	if c.Workers < 1 || c.Workers > maxWorkers {
		return fmt.Errorf("%w: Workers is %d: use 1 to %d", ErrConfig, c.Workers, maxWorkers)
	}
	return nil
}

// Report is the result of a proof.
type Report struct {
	// Holds reports whether no key was admitted more than its policy allows or counted
	// wrongly.
	Holds bool `json:"holds"`
	// Took is the duration in seconds.
	Took float64 `json:"took_s"`
	// Workers is the number of concurrent workers, and Pools the number of their pools.
	Workers int `json:"workers"`
	Pools   int `json:"pools"`
	// Pooler reports whether a connection pooler was between them and the server. Through
	// is its name, version and mode, as far as they can be known.
	Pooler  bool   `json:"pooler"`
	Through string `json:"through,omitempty"`
	// Killed is the number of connections that the server ended for the proof.
	Killed int64 `json:"killed"`
	// Algorithms has one entry for each algorithm.
	Algorithms []Algorithm `json:"algorithms"`
}

// Run runs a proof on the database of pool, and always deletes its keys at the end. With
// an error it returns the results up to then. It uses one or two connections of pool,
// and opens one for each worker.
func Run(ctx context.Context, pool *pgxpool.Pool, config Config) (report Report, err error) {
	if err := config.Validate(); err != nil {
		return report, err
	}
	behindPooler, err := pooler.Between(ctx, pool)
	if err != nil {
		return report, fmt.Errorf("connect: %w", err)
	}
	if err := readWrite(ctx, pool); err != nil {
		return report, err
	}
	through := ""
	if behindPooler {
		if through, err = pooler.Describe(ctx, pool); err != nil {
			return report, fmt.Errorf("connect: %w", err)
		}
		if config.Through != nil {
			config.Through(through)
		}
	}
	config.Kill = config.Kill && !behindPooler
	run := strings.ToLower(rand.Text())
	name := "pglimit prove " + run
	clients, err := newClients(ctx, pool, name, min(pools, config.Workers), config.Workers)
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
	report = Report{Holds: true, Workers: config.Workers, Pools: len(clients), Pooler: behindPooler, Through: through}
	if behindPooler {
		// The limiter does without prepared statements, but not the caller's transactions.
		if err := pooler.Check(ctx, pool); err != nil {
			return report, err
		}
	}
	start := time.Now()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	killing := make(chan struct{})
	go func() {
		defer close(killing)
		if !config.Kill {
			return
		}
		killed, err := killNowAndThen(ctx, pool, name)
		report.Killed = killed
		if err != nil {
			stop(err)
		}
	}()
	algorithms, err := proveAll(ctx, pool, clients, config, run)
	stop(nil)
	<-killing
	report.Algorithms, report.Took = algorithms, time.Since(start).Seconds()
	for _, a := range algorithms {
		report.Holds = report.Holds && len(a.Exceeded) == 0 && len(a.Faults) == 0
	}
	return report, err
}

// proveAll tests the algorithms one after the other. After an error it leaves out the
// results of the last.
func proveAll(ctx context.Context, pool *pgxpool.Pool, clients []client, config Config, run string) (all []Algorithm, err error) {
	clock := func(ctx context.Context) (now time.Time, err error) {
		err = pool.QueryRow(ctx, "SELECT clock_timestamp()", pooler.Mode(pool)).Scan(&now)
		return now, err
	}
	each := config.For / time.Duration(len(limiter.Algorithms()))
	for _, algorithm := range limiter.Algorithms() {
		if config.Progress != nil {
			config.Progress(algorithm)
		}
		seen, err := newContest(clients, config.Workers, algorithm, run, each).contend(ctx, each, clock)
		if fateOf(err) == hopeless {
			return all, err // the same for every algorithm
		}
		if err != nil {
			return all, fmt.Errorf("%s: %w", algorithm, err)
		}
		all = append(all, seen)
	}
	return all, nil
}
