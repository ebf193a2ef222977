package limiter

import (
	"cmp"
	"math"

	"github.com/pglimit/pglimit/internal/store/memory"
)

// NewForgetting returns a Limiter in memory and a function that makes it forget idle
// keys, as it otherwise does when it has grown.
func NewForgetting(config *Config) (*Limiter, func()) {
	m := memory.NewBounded(cmp.Or(config.MaxKeys, math.MaxInt))
	l := newInMemory(m, config)
	return l, func() { m.Forget(l.now()) }
}
