// Package prove tests a database's limits under contention: it compares what they admit
// with what their algorithms allow. `pglimit prove --help` says what it sends.
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
	Holds      bool        `json:"holds"`             // no key was admitted more than its policy allows or counted wrongly
	Took       float64     `json:"took_s"`            // seconds
	Workers    int         `json:"workers"`           // that sent requests concurrently
	Pools      int         `json:"pools"`             // of connections, which the workers shared
	Pooler     bool        `json:"pooler"`            // whether a connection pooler was between them and the server
	Through    string      `json:"through,omitempty"` // its name, version and mode, as far as they can be known
	Killed     int64       `json:"killed"`            // connections that the server ended for the proof
	Algorithms []Algorithm `json:"algorithms"`        // an entry for each
}

// Algorithm has the results of one algorithm.
type Algorithm struct {
	Algorithm limiter.Algorithm `json:"algorithm"`
	Part                        // the sums of all keys
	Kinds     []Part            `json:"kinds"`      // those that the algorithm has
	PerSecond float64           `json:"per_second"` // calls answered per second
	P99       float64           `json:"p99_s"`      // the 99th percentile, in seconds, of the latency of requests outside transactions
	Exceeded  []Excess          `json:"exceeded"`
	Faults    []Fault           `json:"faults"`
}

// Part has the results of some of the keys. All but Keys and Requests are units.
type Part struct {
	Kind       Kind    `json:"kind,omitempty"` // empty: all
	Keys       int     `json:"keys"`           // or windows, if those have fixed edges
	Requests   int     `json:"requests"`
	Asked      float64 `json:"asked"`
	Admitted   float64 `json:"admitted"`    // acknowledged and, in a transaction, committed
	Allowed    float64 `json:"allowed"`     // the most that the policies admit to the keys in that time
	RolledBack float64 `json:"rolled_back"` // admitted in transactions that were rolled back
	Unknown    float64 `json:"unknown"`     // requested without an answer: perhaps counted, but not admitted
}

// Add adds another part.
func (p *Part) Add(q *Part) {
	p.Keys += q.Keys
	p.Requests += q.Requests
	p.Asked += q.Asked
	p.Admitted += q.Admitted
	p.Allowed += q.Allowed
	p.RolledBack += q.RolledBack
	p.Unknown += q.Unknown
}

// Excess is a key that was admitted more than allowed.
type Excess struct {
	Policy   limiter.Policy `json:"policy"`
	Key      string         `json:"key"`
	Admitted float64        `json:"admitted"`
	Allowed  float64        `json:"allowed"`
}

// Fault is a key that was counted or answered wrongly.
type Fault struct {
	Policy limiter.Policy `json:"policy"`
	Key    string         `json:"key"`
	Fault  string         `json:"fault"`
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
