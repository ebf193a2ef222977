package measure

import (
	"fmt"
	"math/rand/v2"
)

// sequenceLength is the number of requests before a sequence starts again. It is large, so
// that the repetition gives no advantage.
const sequenceLength = 1 << 18

// ZipfExponent sets how uneven Zipf is: the first of 100,000 keys gets about an eighth of
// all requests.
const ZipfExponent = 1.1

// Keys returns n keys like an application's.
func Keys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%06d", i)
	}
	return keys
}

// Evenly returns a sequence of requests for n equally likely keys, in random order. It is
// the same in every run with this seed.
func Evenly(n int, seed uint64) []uint32 {
	r := rand.New(rand.NewPCG(1, seed))
	return sequence(func() uint32 { return uint32(r.IntN(n)) })
}

// Zipf returns a sequence that requests few of n keys often and most rarely, key 0 the
// most. It is the same in every run.
func Zipf(n int) []uint32 {
	z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), ZipfExponent, 1, uint64(n-1))
	return sequence(func() uint32 { return uint32(z.Uint64()) })
}

func sequence(next func() uint32) []uint32 {
	s := make([]uint32, sequenceLength)
	for i := range s {
		s[i] = next()
	}
	return s
}
