// Package algorithm is the arithmetic of the algorithms: what a key holds at a moment,
// what a request adds, what goes back, and when the next request fits. It does no
// input or output and reads no clock.
//
// A key's state is one of four: [Bucket] (leaky bucket, queue, token bucket and GCRA),
// [Window], [Counter] and [Log]. The in-memory limiter runs on them, and the
// statements of queries/ are held to them. All times are microseconds since 1970.
package algorithm
