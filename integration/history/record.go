//go:build unix

package history

import (
	"slices"

	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/limiter"
)

// record is one operation of a history.
type record struct {
	Scene, Process, Client int
	Op                     model.Op
	Out                    model.Out
	Call, Return           int64
	Err                    string // of a lost answer
}

// cached reports whether a remembered denial answered, so that the database was not asked.
func (r *record) cached() bool {
	return slices.ContainsFunc(r.Out.Results(), func(a limiter.Result) bool { return a.Source == limiter.SourceCache })
}
