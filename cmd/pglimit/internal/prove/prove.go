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
	"sync"
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
	run := strings.ToLower(rand.Text())
	s := &server{pool: pool, run: run, name: "pglimit prove " + run}
	if s.behindPooler, err = pooler.Between(ctx, pool); err == nil && s.behindPooler {
		report.Through, err = pooler.Describe(ctx, pool)
	}
	if err != nil {
		return report, fmt.Errorf("connect: %w", err)
	}
	if s.behindPooler && config.Through != nil {
		config.Through(report.Through)
	}
	clients, err := s.newClients(ctx, min(pools, config.Workers), config.Workers)
	defer func() {
		for _, c := range clients {
			c.(*dbClient).pool.Close()
		}
		if s.behindPooler {
			err = pooler.ExplainIn(pool.Config().ConnConfig.DefaultQueryExecMode, err)
		}
		refused := len(report.Algorithms) == 0 && errors.Is(err, limiter.ErrMisconfigured) && !pooler.Lost(err)
		if !refused { // else there is nothing to delete
			err = errors.Join(err, s.cleanUp(ctx))
		}
	}()
	if err == nil && s.behindPooler {
		// The limiter does without prepared statements, but not the caller's transactions.
		err = pooler.Check(ctx, pool)
	}
	if err != nil {
		return report, err
	}
	report.Holds, report.Workers, report.Pools, report.Pooler = true, config.Workers, len(clients), s.behindPooler
	start := time.Now()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var killing sync.WaitGroup
	if config.Kill && !s.behindPooler {
		killing.Go(func() {
			var failed error
			if report.Killed, failed = s.killNowAndThen(ctx); failed != nil {
				stop(failed)
			}
		})
	}
	report.Algorithms, err = s.proveAll(ctx, clients, config)
	stop(nil)
	killing.Wait()
	report.Took = time.Since(start).Seconds()
	for _, a := range report.Algorithms {
		report.Holds = report.Holds && len(a.Exceeded) == 0 && len(a.Faults) == 0
	}
	return report, err
}

// proveAll tests the algorithms one after the other. After an error it leaves out the
// results of the last.
func (s *server) proveAll(ctx context.Context, clients []client, config Config) (all []Algorithm, err error) {
	each := config.For / time.Duration(len(limiter.Algorithms()))
	for _, algorithm := range limiter.Algorithms() {
		if config.Progress != nil {
			config.Progress(algorithm)
		}
		seen, err := newContest(clients, config.Workers, algorithm, s.run, each).contend(ctx, each, s.clock)
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
