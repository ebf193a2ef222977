package replay

import "time"

const (
	maxParts = 72 // an hour of minutes, and more

	second = int64(time.Second / time.Microsecond)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour

	// monday is the first one since 1970: parts are counted from it, so that those
	// of weeks begin on Mondays, and all shorter ones on the clock.
	monday = 4 * day
)

// lengths are those that parts can have. Whole seconds, as a log's times are:
// parts of 1.5 s would have the requests of one second and of two by turns.
var lengths = []int64{
	second, 2 * second, 5 * second, 10 * second, 15 * second, 30 * second,
	minute, 2 * minute, 5 * minute, 10 * minute, 15 * minute, 30 * minute,
	hour, 2 * hour, 3 * hour, 6 * hour, 12 * hour, day, 2 * day, 7 * day, 14 * day, 28 * day,
}

// parts divides a log's time into equal ones for the counts over time, in
// microseconds.
type parts struct {
	start, length int64
	count         int
}

// partsOf takes the shortest parts of which maxParts are enough.
func partsOf(first, last int64) parts {
	for i := 0; ; i++ {
		length := lengths[min(i, len(lengths)-1)]
		for n := len(lengths); n <= i; n++ {
			length *= 2
		}
		start := floor(first, length)
		if n := (last-start)/length + 1; n <= maxParts {
			return parts{start, length, int(n)}
		}
	}
}

// floor is the last whole multiple of length since monday that is not after at.
func floor(at, length int64) int64 {
	rest := (at - monday) % length
	if rest < 0 {
		rest += length
	}
	return at - rest
}

// of is the number of the part that a time is in.
func (p parts) of(at int64) int { return int((at - p.start) / p.length) }
