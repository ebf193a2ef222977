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

	"github.com/pglimit/pglimit/bench/proc"
)

// Load describes a cell. All fields but the rate and the clocks are required.
type Load struct {
	Callers int
	// Warmup is the time before recording begins, Duration the time of recording.
	Warmup, Duration time.Duration
	// Keys are requested in the order of Sequence, which has indexes of Keys and starts
	// again at its end. Each caller starts elsewhere in it.
	Keys     []string
	Sequence []uint32
	// Decide makes one decision and returns the units that it allowed.
	Decide func(ctx context.Context, key string) (units float64, err error)
	// PerSecond is the rate that the callers try to reach together. 0: each sends its next
	// request when it has its answer.
	PerSecond float64
	// Client, Service and Server read the processor time that this process, a service between
	// and the server have used. They are optional.
	Client, Service, Server proc.Clock
}

// Sample is the measurements of one cell.
type Sample struct {
	Decisions int64         // answered while recording
	Elapsed   time.Duration // of recording
	P50, P99  time.Duration // from the request to its answer
	P999      time.Duration // one of 1,000 requests took longer
	Late      time.Duration // see RunOpen
	Allocs    float64       // per decision, of the whole process
	// Units were allowed in all, including the warm-up and the last answers, and First of them
	// for Keys[0].
	Units, First float64
	// Client, Service and Server are the processor time per decision in nanoseconds; Unknown if
	// it was not read.
	Client, Service, Server float64
}

// Unknown is a processor time that the system does not report.
const Unknown = -1

// PerSecond returns the throughput.
func (s Sample) PerSecond() float64 { return float64(s.Decisions) / s.Elapsed.Seconds() }

// each returns the processor time of one decision, given the use of each second.
func (s Sample) each(perSecond float64) float64 {
	if perSecond == Unknown {
		return Unknown
	}
	return perSecond / s.PerSecond()
}

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
		callers[i] = &caller{number: i, at: i * len(l.Sequence) / l.Callers, times: newHistogram()}
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
	Pause(ctx, l.Warmup)
	server, err := spent(l.Server)
	service, serviceErr := spent(l.Service)
	runtime.ReadMemStats(&before)
	client, clientErr := spent(l.Client)
	err = errors.Join(err, clientErr, serviceErr)
	begin := time.Now()
	phase.Store(recording)
	Pause(ctx, l.Duration)
	phase.Store(cooling)
	elapsed := time.Since(begin)
	ofClient, clientErr := client()
	runtime.ReadMemStats(&after)
	ofService, serviceErr := service()
	ofServer, serverErr := server()
	err = errors.Join(err, clientErr, serviceErr, serverErr)
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
		s.Units, s.First = s.Units+c.units, s.First+c.first
	}
	s.read(all)
	if s.Decisions == 0 {
		return Sample{}, fmt.Errorf("no decision within %v", l.Duration)
	}
	s.Allocs = float64(after.Mallocs-before.Mallocs) / float64(s.Decisions)
	s.Client, s.Service, s.Server = s.each(ofClient), s.each(ofService), s.each(ofServer)
	return s, nil
}

// mostLate is the most by which a caller falls behind its rate.
const mostLate = time.Second

// caller is one that asks.
type caller struct {
	number       int
	at           int // in Load.Sequence
	units, first float64
	times        *hdrhistogram.Histogram
}

// ask sends requests until it is stopped, and allocates nothing itself.
func (c *caller) ask(ctx context.Context, l *Load, phase *atomic.Int32) error {
	begin := time.Now()
	var every time.Duration
	if l.PerSecond > 0 {
		every = time.Duration(float64(l.Callers) / l.PerSecond * float64(time.Second))
	}
	next := begin.Add(every * time.Duration(c.number) / time.Duration(l.Callers))
	for ctx.Err() == nil {
		if every > 0 {
			Pause(ctx, time.Until(next))
			begin = time.Now()
			next = next.Add(max(every, begin.Sub(next)-mostLate))
		}
		key := l.Sequence[c.at]
		if c.at++; c.at == len(l.Sequence) {
			c.at = 0
		}
		units, err := l.Decide(ctx, l.Keys[key])
		if err != nil {
			return err
		}
		if units == 0 {
			return errDenied(l.Keys[key])
		}
		c.units += units
		if key == 0 {
			c.first += units
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

func errDenied(key string) error {
	return fmt.Errorf("key %s was denied, though its limit was far", key)
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
