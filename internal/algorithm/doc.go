// Package algorithm is the arithmetic of the algorithms: the units of a key at a moment,
// what a request adds, what goes back, and when the next request fits. It does no input
// or output and reads no clock.
//
// A key's state is one of four: [Bucket] (leaky bucket, queue, token bucket and GCRA),
// [Window], [Counter] and [Log]. The in-memory limiter uses them, and the statements of
// queries/ are tested against them. All times are Unix microseconds.
package algorithm
