package testworld

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// InSQLAndMemory runs f on a limiter over PostgreSQL and on one in memory, each with a
// clock that f sets.
func InSQLAndMemory(t *testing.T, f func(t *testing.T, l *limiter.Limiter, clock *conformance.Clock)) {
	t.Parallel()
	t.Run("SQL", func(t *testing.T) {
		t.Parallel()
		clock := new(conformance.Clock)
		f(t, NewLimiter(t, NewPool(t), &limiter.Config{Now: clock.Now, DisableDenyCache: true}), clock)
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		clock := new(conformance.Clock)
		f(t, limiter.NewMemory(&limiter.Config{Now: clock.Now}), clock)
	})
}

// Holdable are the variants that allow reservations, with 10 units per 10 s.
func Holdable() (policies []limiter.Policy) {
	for _, p := range Variants(10, 10*time.Second) {
		if p.Algorithm != limiter.LeakyBucketQueue {
			p.Burst = 0
			policies = append(policies, p)
		}
	}
	return policies
}

// Reserve creates a reservation and fails the test if it is denied.
func Reserve(t *testing.T, l verbs.Limiter, request limiter.Request, ttl time.Duration) limiter.Reservation {
	t.Helper()
	h, err := l.Reserve(context.Background(), request, ttl)
	if err != nil || !h.Result.Allowed || h.ID == "" {
		t.Fatalf("reserve %v: %+v, %v", request.Cost, h, err)
	}
	return h
}

// Level returns a key's level.
func Level(t *testing.T, l verbs.Limiter, p limiter.Policy, key string) float64 {
	t.Helper()
	return Must(t)(l.Check(context.Background(), p, key, 0)).Level
}

// StoredID returns the column id of the reservation with that ID.
func StoredID(id string) string {
	_, rest, _ := strings.Cut(id, ":")
	stored, _, _ := strings.Cut(rest, ":")
	return stored
}
