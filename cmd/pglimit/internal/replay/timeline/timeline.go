// Package timeline divides the time of a log into equal parts. Times and lengths are in
// microseconds, times since 1970.
package timeline

import "time"

// Lengths of time.
const (
	Second = int64(time.Second / time.Microsecond)
	Minute = 60 * Second
	Hour   = 60 * Minute
	Day    = 24 * Hour
)

const (
	maxParts = 72 // an hour of minutes, and more

	// monday is the first Monday since 1970. Parts are counted from it, so that weeks
	// begin on Mondays, and all shorter parts are aligned to the clock.
	monday = 4 * Day
)

// Lengths are the possible lengths of parts; after the last, each is twice the one before.
// They are whole seconds, like a log's times: parts of 1.5 s would alternately have the
// requests of one second and of two.
var Lengths = []int64{
	Second, 2 * Second, 5 * Second, 10 * Second, 15 * Second, 30 * Second,
	Minute, 2 * Minute, 5 * Minute, 10 * Minute, 15 * Minute, 30 * Minute,
	Hour, 2 * Hour, 3 * Hour, 6 * Hour, 12 * Hour, Day, 2 * Day, 7 * Day, 14 * Day, 28 * Day,
}

// Parts are equal parts of time.
type Parts struct {
	Start, Length int64
	Count         int
}

// Divide returns the shortest parts such that at most maxParts cover first to last.
func Divide(first, last int64) Parts {
	for i := 0; ; i++ {
		length := Lengths[min(i, len(Lengths)-1)]
		for n := len(Lengths); n <= i; n++ {
			length *= 2
		}
		start := Floor(first, length)
		if n := (last-start)/length + 1; n <= maxParts {
			return Parts{start, length, int(n)}
		}
	}
}

// Index returns the number of the part that a time is in.
func (p Parts) Index(at int64) int { return int((at - p.Start) / p.Length) }

// Begin returns the time at which the i-th part begins.
func (p Parts) Begin(i int) int64 { return p.Start + int64(i)*p.Length }

// End returns the time at which the last part ends.
func (p Parts) End() int64 { return p.Begin(p.Count) }

// Floor returns the last whole multiple of length, counted from a Monday, that is not
// after at.
func Floor(at, length int64) int64 {
	rest := (at - monday) % length
	if rest < 0 {
		rest += length
	}
	return at - rest
}

// UTC returns a time as a time.Time in UTC.
func UTC(at int64) time.Time { return time.UnixMicro(at).UTC() }
