// Package ratelimit compares the command's rate limit service with envoyproxy/ratelimit: its
// own configuration and service packages, over a Redis in memory. It is a separate module, so
// that nothing else builds with those.
package ratelimit
