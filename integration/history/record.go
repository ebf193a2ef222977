//go:build unix

package history

import (
	"time"

	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/limiter"
)

// record is one operation of a history.
type record struct {
	Scene, Process, Client int
	Op                     model.Op
	Out                    model.Out
	Call, Return           int64
	// Sources are where the answers came from, one for each of an AllowAll.
	Sources []limiter.Source
	Err     string // of a lost answer
}

// cached reports whether a remembered denial answered, so that the database was not asked.
func (r *record) cached() bool {
	for _, s := range r.Sources {
		if s == limiter.SourceCache {
			return true
		}
	}
	return false
}

// answer returns a result as the model has it.
func answer(r limiter.Result) model.Answer {
	return model.Answer{
		Allowed: r.Allowed, Granted: r.Granted, Limit: r.Limit, Burst: r.Burst, Remaining: r.Remaining, Level: r.Level,
		RetryAfter: micros(r.RetryAfter), ResetAfter: micros(r.ResetAfter), Delay: micros(r.Delay), Full: r.Full,
		Reason: string(r.Reason), Replayed: r.Replayed, Expired: r.Expired, Shadowed: r.Shadowed, At: r.At.UnixMicro(),
	}
}

func micros(d time.Duration) int64 {
	if d == limiter.Never {
		return model.Never
	}
	return d.Microseconds()
}
