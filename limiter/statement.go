package limiter

import (
	"context"
	"encoding/json"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// Statement is how a key stands: what was spent, what is held and what is left.
type Statement struct {
	// Result is what Check at cost 0 answers: Level is Spent plus Held.
	Result Result
	// Spent is how many units are counted for good: of a window, in the present
	// one; of a bucket, what has not leaked yet.
	Spent float64
	// Held is how many units open holds have set aside. Of a bucket it is what they
	// were, at most Level: which units have leaked is not told apart.
	Held float64
	// Holds is how many open holds that is, those that have expired and were not
	// given back yet among them.
	Holds int
	// Left is how many units could be granted now: Result.Remaining.
	Left float64
	// Ends is when the present window ends, for FixedWindow; zero if the key has
	// none and for the other algorithms.
	Ends time.Time
}

// statementJSON is a Statement in JSON.
type statementJSON struct {
	Spent float64    `json:"spent"`
	Held  float64    `json:"held"`
	Holds int        `json:"holds"`
	Left  float64    `json:"left"`
	Limit float64    `json:"limit"`
	Burst float64    `json:"burst"`
	Ends  *time.Time `json:"ends"`
}

// MarshalJSON writes the names that the command shows too; ends is null where
// there is no window.
func (s Statement) MarshalJSON() ([]byte, error) {
	t := statementJSON{Spent: s.Spent, Held: s.Held, Holds: s.Holds, Left: s.Left, Limit: s.Result.Limit, Burst: s.Result.Burst}
	if !s.Ends.IsZero() {
		t.Ends = &s.Ends
	}
	return json.Marshal(t)
}

// Statement tells how the key stands, as of one moment. It consumes nothing.
func (l *Limiter) Statement(ctx context.Context, p Policy, key string) (Statement, error) {
	return l.engine.statement(ctx, p, key)
}

// Statement is Limiter.Statement in the transaction.
func (t *Tx) Statement(ctx context.Context, p Policy, key string) (Statement, error) {
	return t.engine.statement(ctx, p, key)
}

func (e *engine) statement(ctx context.Context, p Policy, key string) (s Statement, err error) {
	var q question
	if err := e.question(verbCheck, p.Ask(key, 0), &q); err != nil {
		return s, err
	}
	var now standing
	_, err = e.config.bounded(ctx, func(ctx context.Context) (_ outcome, err error) {
		now, err = e.store.statement(ctx, &q)
		return outcome{}, err
	})
	if err != nil {
		return s, err
	}
	s.Result = q.result(verbCheck, now.outcome, p, e.store.source())
	s.Holds, s.Held = now.holds, min(now.held, s.Result.Level)
	s.Spent, s.Left = s.Result.Level-s.Held, s.Result.Remaining
	if w, ok := now.outcome.view.(*algorithm.Window); ok && w.Count > 0 {
		s.Ends = time.UnixMicro(w.EndsAt)
	}
	return s, nil
}
