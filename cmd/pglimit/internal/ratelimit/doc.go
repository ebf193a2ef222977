// Package ratelimit answers Envoy's rate limit service, version 3, in place of
// envoyproxy/ratelimit: the same configuration, matching, answers and metric names, with the
// counts in PostgreSQL.
//
//   - config.go and read.go: a domain's configuration, from YAML or xDS
//   - match.go: the limit, policy and key of a descriptor
//   - decide.go: all descriptors of a request, decided together
//   - service.go and answer.go: the gRPC service and its responses
//   - quota.go and quota_bucket.go: Envoy's quota service, by the same configuration
//   - kuadrant.go and reserve.go: Kuadrant's service, which decides and counts apart
//   - files.go and xds.go: where the configuration comes from, and how it changes
//   - http.go and metrics.go: the same over HTTP, health and metrics
//   - env.go and run.go: the whole as a program named ratelimit
package ratelimit
