package limiter

import (
	"strings"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store/lease"
)

// rowKey identifies a row by the caller's key, in memory only: a lookup needs no HMAC with
// Config.KeySecret.
type rowKey struct {
	policy    string
	algorithm algorithm.Name // whose table has the row
	key       string
}

func rowOf(in *Request) rowKey { return rowKey{in.Policy.Name, in.Policy.Algorithm.table(), in.Key} }

// clone returns a copy to keep: the caller's key may share memory with a large text or a
// reused buffer.
func (k rowKey) clone() rowKey {
	k.key = strings.Clone(k.key)
	return k
}

// block is a part of a row's units that this process may grant.
type block = lease.Block[rowKey, lent]

// lent is what answers come from while a block lasts.
type lent struct {
	result Result // of the statement that took the block, all of whose units are in use
	grant  algorithm.Grant
	rate   float64 // units that leak in a nanosecond; 0 for windows
	lag    int64   // nanoseconds from before that statement to its answer
}
