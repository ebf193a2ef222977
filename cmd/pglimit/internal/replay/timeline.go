package replay

import "time"

// Lengths of time.
const (
	second = int64(time.Second / time.Microsecond)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

const (
	maxParts = 72 // an hour of minutes, and more

	// monday is the first Monday since 1970. Parts are counted from it, so that weeks
	// begin on Mondays, and all shorter parts are aligned to the clock.
	monday = 4 * day
)

// lengths are the possible lengths of parts; after the last, each is twice the one before.
// They are whole seconds, like a log's times: parts of 1.5 s would alternately have the
// requests of one second and of two.
var lengths = []int64{
	second, 2 * second, 5 * second, 10 * second, 15 * second, 30 * second,
	minute, 2 * minute, 5 * minute, 10 * minute, 15 * minute, 30 * minute,
	hour, 2 * hour, 3 * hour, 6 * hour, 12 * hour, day, 2 * day, 7 * day, 14 * day, 28 * day,
}

// Parts are equal parts of the time of a log. Times and lengths are in microseconds, times
// since 1970.
type Parts struct {
	Start, Length int64
	Count         int
}

// lengthOf returns the i-th possible length.
func lengthOf(i int) int64 {
	last := len(lengths) - 1
	return lengths[min(i, last)] << max(0, i-last)
}

// divide returns the shortest parts such that at most maxParts cover first to last.
func divide(first, last int64) Parts {
	for i := 0; ; i++ {
		length := lengthOf(i)
		start := floorTo(first, length)
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

// floorTo returns the last whole multiple of length, counted from a Monday, that is not
// after at.
func floorTo(at, length int64) int64 {
	rest := (at - monday) % length
	if rest < 0 {
		rest += length
	}
	return at - rest
}

// utc returns a time as a time.Time in UTC.
func utc(at int64) time.Time { return time.UnixMicro(at).UTC() }
