package limiter

import (
	"cmp"
	"math"

	"github.com/pglimit/pglimit/internal/store/memory"
)

// NewForgetting returns a Limiter in memory, a function that makes it forget idle keys, as
// it otherwise does when it has grown, and one that counts its keys.
func NewForgetting(config *Config) (l *Limiter, forget func(), keys func() int) {
	m := memory.NewBounded(cmp.Or(config.MaxKeys, math.MaxInt))
	l = newInMemory(m, config)
	return l, func() { m.Forget(l.now()) }, m.Len
}
