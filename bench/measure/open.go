package measure

import (
	"context"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// OpenLoad is requests that arrive by a clock, whether or not earlier ones have been
// answered. An answer's time counts from the moment at which its request was due, so that a
// slow answer shows in those of the requests that wait behind it.
type OpenLoad struct {
	// Begin is the first request's moment, so that several loads can begin together.
	Begin  time.Time
	Stages []Stage
	// Callers is the largest number of requests in flight. Further ones wait, which counts
	// as part of their time.
	Callers int
	// Keys are requested in the order of Sequence, which starts again at its end.
	Keys     []string
	Sequence []uint32
	// Decide makes one decision and returns the units that it allowed.
	Decide func(ctx context.Context, key string) (units float64, err error)
	// SleepUntil is the clock. The default is the most precise that the system has.
	SleepUntil func(time.Time)
}

// Stage is a time with a constant rate of requests, which are due at equal distances.
type Stage struct {
	PerSecond float64
	Length    time.Duration
}

func (s Stage) requests() int { return int(s.PerSecond * s.Length.Seconds()) }

// arrival is a request that is due.
type arrival struct {
	due   time.Time
	stage int
	key   string
}

// RunOpen runs an open load until all requests are answered. It returns a sample for each
// stage, of the requests that were due in it; its times count from the moment at which a
// request was due. Late is the lateness of the clock itself for 99 of 100 requests, which is
// part of the other times. A denial is an error.
func RunOpen(ctx context.Context, l OpenLoad) ([]Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if l.SleepUntil == nil {
		l.SleepUntil = sleepUntil
	}
	all := 0
	for _, s := range l.Stages {
		all += s.requests()
	}
	arrivals := make(chan arrival, all) // the clock never waits for callers
	var wg sync.WaitGroup
	callers := make([][]*hdrhistogram.Histogram, l.Callers)
	for i := range callers {
		callers[i] = histograms(len(l.Stages))
		wg.Go(func() {
			for a := range arrivals {
				if err := l.answer(ctx, a, callers[i]); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	late := histograms(len(l.Stages))
	l.arrive(ctx, arrivals, late)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}

	samples := make([]Sample, len(l.Stages))
	for i := range samples {
		times := newHistogram()
		for _, c := range callers {
			times.Merge(c[i])
		}
		samples[i] = Sample{
			Elapsed: l.Stages[i].Length, Late: time.Duration(late[i].ValueAtQuantile(99)), Client: Unknown, Server: Unknown,
		}
		samples[i].read(times)
	}
	return samples, nil
}

// arrive sends each request at its moment, and closes the channel.
func (l *OpenLoad) arrive(ctx context.Context, arrivals chan<- arrival, late []*hdrhistogram.Histogram) {
	defer close(arrivals)
	begin, next := l.Begin, 0
	for stage, s := range l.Stages {
		for i := range s.requests() {
			due := begin.Add(time.Duration(float64(i) / s.PerSecond * float64(time.Second)))
			if time.Now().Before(due) {
				l.SleepUntil(due)
			}
			if ctx.Err() != nil {
				return
			}
			_ = late[stage].RecordValue(int64(time.Since(due))) // within its range, or the answer is not
			arrivals <- arrival{due, stage, l.Keys[l.Sequence[next%len(l.Sequence)]]}
			next++
		}
		begin = begin.Add(s.Length)
	}
}

// answer sends one request.
func (l *OpenLoad) answer(ctx context.Context, a arrival, times []*hdrhistogram.Histogram) error {
	units, err := l.Decide(ctx, a.key)
	if err != nil {
		return err
	}
	if units == 0 {
		return errDenied(a.key)
	}
	return times[a.stage].RecordValue(int64(time.Since(a.due)))
}

func histograms(n int) []*hdrhistogram.Histogram {
	list := make([]*hdrhistogram.Histogram, n)
	for i := range list {
		list[i] = newHistogram()
	}
	return list
}
