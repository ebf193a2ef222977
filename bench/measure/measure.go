// Package measure runs one cell of the benchmark: concurrent callers, each of which sends
// its next request when it has its answer.
package measure

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/pglimit/pglimit/bench/processor"
)

// Load describes a cell. All fields but the clocks are required.
type Load struct {
	Callers int
	// Warmup is the time before recording begins, Duration the time of recording.
	Warmup, Duration time.Duration
	// Keys are requested in the order of Sequence, which has indexes of Keys and starts
	// again at its end. Each caller starts elsewhere in it.
	Keys     []string
	Sequence []uint32
	// Decide makes one decision.
	Decide func(ctx context.Context, key string) (allowed bool, err error)
	// Client and Server read the processor time that this process and the server have
	// used. They are optional.
	Client, Server processor.Clock
}

// Sample is the measurements of one cell.
type Sample struct {
	Decisions  int64         // answered while recording
	Elapsed    time.Duration // of recording
	P50, P99   time.Duration // from the request to its answer
	P999       time.Duration // one of 1,000 requests took longer
	Late       time.Duration // see RunOpen
	Allocs     float64       // per decision, of the whole process
	FirstCount int64         // decisions for Keys[0], including the warm-up and the last ones
	// Client and Server are the processor time per decision in nanoseconds; Unknown if it
	// was not read.
	Client, Server float64
}

// Unknown is a processor time that the system does not report.
const Unknown = -1

// PerSecond returns the throughput.
func (s Sample) PerSecond() float64 { return float64(s.Decisions) / s.Elapsed.Seconds() }

// read sets the number of decisions and their times.
func (s *Sample) read(times *hdrhistogram.Histogram) {
	s.Decisions = times.TotalCount()
	s.P50 = time.Duration(times.ValueAtQuantile(50))
	s.P99 = time.Duration(times.ValueAtQuantile(99))
	s.P999 = time.Duration(times.ValueAtQuantile(99.9))
}

// The phases of a cell.
const (
	warming int32 = iota
	recording
	cooling // the load goes on while the last clock is read
	stopping
)

// Run runs a cell. A denial is an error, because policies here allow everything, and a
// denied decision costs differently.
func Run(ctx context.Context, l Load) (Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var phase atomic.Int32
	callers := make([]*caller, l.Callers)
	for i := range callers {
		callers[i] = &caller{at: i * len(l.Sequence) / l.Callers, times: newHistogram()}
	}
	runtime.GC() // so that this cell does not pay for the previous one's garbage

	var wg sync.WaitGroup
	for _, c := range callers {
		wg.Go(func() {
			if err := c.ask(ctx, &l, &phase); err != nil {
				cancel(err)
			}
		})
	}
	// The server's clock takes a while to read, so it is read outside of the time that is
	// recorded and of the client's. The load is the same there.
	var before, after runtime.MemStats
	server, client := stopwatch{clock: l.Server}, stopwatch{clock: l.Client}
	Pause(ctx, l.Warmup)
	err := server.start()
	runtime.ReadMemStats(&before)
	err = errors.Join(err, client.start())
	begin := time.Now()
	phase.Store(recording)
	Pause(ctx, l.Duration)
	phase.Store(cooling)
	elapsed := time.Since(begin)
	err = errors.Join(err, client.stop())
	runtime.ReadMemStats(&after)
	err = errors.Join(err, server.stop())
	phase.Store(stopping)
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return Sample{}, cause
	}
	if err != nil {
		return Sample{}, fmt.Errorf("read the processor time: %w", err)
	}

	s := Sample{Elapsed: elapsed}
	all := newHistogram()
	for _, c := range callers {
		all.Merge(c.times)
		s.FirstCount += c.first
	}
	s.read(all)
	if s.Decisions == 0 {
		return Sample{}, fmt.Errorf("no decision within %v", l.Duration)
	}
	s.Allocs = float64(after.Mallocs-before.Mallocs) / float64(s.Decisions)
	s.Client, s.Server = client.per(s), server.per(s)
	return s, nil
}

// caller is one that asks.
type caller struct {
	at    int // in Load.Sequence
	first int64
	times *hdrhistogram.Histogram
}

// ask sends requests until it is stopped, and allocates nothing itself.
func (c *caller) ask(ctx context.Context, l *Load, phase *atomic.Int32) error {
	begin := time.Now()
	for ctx.Err() == nil {
		key := l.Sequence[c.at]
		if c.at++; c.at == len(l.Sequence) {
			c.at = 0
		}
		allowed, err := l.Decide(ctx, l.Keys[key])
		if err != nil {
			return err
		}
		if !allowed {
			return fmt.Errorf("key %s was denied, though its limit was far", l.Keys[key])
		}
		if key == 0 {
			c.first++
		}
		end := time.Now()
		switch phase.Load() {
		case recording:
			if err := c.times.RecordValue(int64(end.Sub(begin))); err != nil {
				return err
			}
		case stopping:
			return nil
		}
		begin = end
	}
	return nil
}

// newHistogram counts nanoseconds up to five minutes, to within 1 %.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(100, int64(5*time.Minute), 2)
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
