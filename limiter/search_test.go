package limiter_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// everyBase searches each form of an algorithm.
func everyBase(t *testing.T, d search.Draw, histories int, subject func(*search.History) search.Subject) {
	t.Parallel()
	for _, base := range search.Bases() {
		t.Run(search.Name(base), func(t *testing.T) {
			t.Parallel()
			d := d
			d.Base = base
			search.Search(t, d, search.Histories(histories), subject)
		})
	}
}

// forgetting returns a limiter that forgets idle keys when it is told to, and if it has
// MaxKeys.
func forgetting(h *search.History) (s search.Subject, keys func() int) {
	live, err := policies.New()
	if err != nil {
		panic(err)
	}
	s.Clock = new(conformance.Clock)
	l, forget, keys := limiter.NewForgetting(&limiter.Config{
		Now: s.Clock.Now, MaxKeys: h.MaxKeys, DisableTimeout: true, IdempotencyTTL: search.Remember, Policies: live,
	})
	s.Ways, s.Apply, s.Sweep = search.By(l), search.Applied(live), func() error { forget(); return nil }
	return s, keys
}

// TestMemoryAdmitsNoMoreThanItsBound: random histories of all verbs on memory limiters,
// without transactions, that forget idle keys in between.
func TestMemoryAdmitsNoMoreThanItsBound(t *testing.T) {
	everyBase(t, search.Draw{MaxKeys: true}, 400, func(h *search.History) search.Subject {
		s, _ := forgetting(h)
		return s
	})
}

// TestMemoryDenialChangesNothing: a limiter that was never asked what another one denied
// answers alike, whatever plan was denied. For a denied cost that can fit, RetryAfter is
// never 0. A request at that time is allowed, and one a microsecond earlier is not, however
// sums round. Reservations are left out: a denial gives back what has expired.
func TestMemoryDenialChangesNothing(t *testing.T) {
	d := search.Draw{Equal: true, Forward: true, Retries: true, Operations: search.Without(search.Usual, "reserve", "reserve_up_to", "settle", "cancel", "override", "undo", "refund")}
	everyBase(t, d, 100, func(h *search.History) search.Subject {
		s := search.Memory(new(conformance.Clock))
		s.Alike = search.Rounded
		s.Skip = func(step *search.Step, a verbs.Answer) (bool, error) {
			for _, p := range h.Policies {
				if p.BlockFor > 0 || p.Burst > 0 && p.Name == h.Policies[0].Name && p != h.Policies[0] {
					return false, nil // it starts a block, or the time since leaks at the plan's rate
				}
			}
			return a.Err == nil && len(a.PerRequest) > 0 && !a.Allowed, nil
		}
		return s
	})
}

// TestMemoryForgettingChangesNoAnswer: a limiter that forgets idle keys answers as one that
// does not, or with ErrOverloaded. It does that only if its keys in use leave no room. A
// key is idle by its last plan, and the next may differ.
func TestMemoryForgettingChangesNoAnswer(t *testing.T) {
	d := search.Draw{Equal: true, Coarse: true, Forward: true, ByKey: true, Keys: 6, MaxKeys: true, Operations: search.Without(search.Usual, "override", "block")}
	everyBase(t, d, 100, func(h *search.History) search.Subject {
		s, keys := forgetting(h)
		s.Alike = search.Rounded
		s.Skip = func(step *search.Step, a verbs.Answer) (bool, error) {
			if h.MaxKeys > 0 && keys() > h.MaxKeys {
				return false, fmt.Errorf("%d keys are kept, more than %d", keys(), h.MaxKeys)
			}
			if !errors.Is(a.Err, limiter.ErrOverloaded) {
				return false, nil
			}
			admits := step.Op == "reserve" || step.Op == "reserve_up_to" || step.Idempotency != "" // their number is bounded, too
			if err := s.Sweep(); err != nil || !admits && keys()+max(1, len(step.Asks)) <= h.MaxKeys {
				return true, fmt.Errorf("%w, but only %d of %d keys are in use", a.Err, keys(), h.MaxKeys)
			}
			return true, nil
		}
		return s
	})
}
