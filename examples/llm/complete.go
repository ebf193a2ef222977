package main

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Model streams an answer of at most maxTokens to a prompt.
type Model func(ctx context.Context, prompt string, maxTokens int) iter.Seq2[Chunk, error]

// Chunk is a piece of an answer. Used is the number of tokens used so far, including the
// prompt.
type Chunk struct {
	Text string
	Used int
}

// ttl bounds the time of an answer. If its process dies, what was reserved comes back
// after that.
const ttl = 5 * time.Minute

type service struct {
	limits *limiter.Limiter
	model  Model
}

// complete streams the model's answer to a tenant's prompt and returns the number of
// tokens used. If the tenant's budget has no room for the most that the answer may use,
// the error is a *limiter.DeniedError and no request is sent to the model.
func (s *service) complete(ctx context.Context, out io.Writer, tenant, prompt string, maxTokens int) (used int, err error) {
	// The deadline begins before the reservation and so ends before it. A longer stream
	// would use units that were given back.
	ctx, stop := context.WithTimeout(ctx, ttl)
	defer stop()
	hold, err := s.reserve(ctx, tenant, prompt, maxTokens)
	if err != nil {
		return 0, err
	}
	defer func() {
		// The caller may have gone away. The tokens used are still counted.
		err = errors.Join(err, s.finish(context.WithoutCancel(ctx), hold.ID, used))
	}()
	for chunk, err := range s.model(ctx, prompt, maxTokens) {
		if err != nil {
			return used, err
		}
		used = chunk.Used
		if _, err := io.WriteString(out, chunk.Text); err != nil {
			return used, err
		}
	}
	return used, nil
}

// reserve sets aside the most that an answer may use. If another process is to finish the
// job, store the reservation's ID with it.
func (s *service) reserve(ctx context.Context, tenant, prompt string, maxTokens int) (limiter.Reservation, error) {
	hold, err := s.limits.Reserve(ctx, budget.Request(tenant, float64(estimate(prompt)+maxTokens)), ttl)
	if err != nil {
		return hold, err
	}
	return hold, hold.Result.Err()
}

// finish settles a reservation with the tokens used. Any process may call it, and may
// repeat it: the same number is counted once. If less was used than reserved, the rest is
// given back. More is recorded too, also after ttl.
func (s *service) finish(ctx context.Context, hold string, used int) (err error) {
	for range tries {
		if used == 0 { // it failed before the model had read the prompt
			err = s.limits.Cancel(ctx, hold)
		} else {
			_, err = s.limits.Settle(ctx, hold, float64(used))
		}
		if !errors.Is(err, limiter.ErrUnavailable) {
			break
		}
	}
	return err
}

// tries bounds how often finish sends the settlement. If all fail, the reservation comes
// back when it expires, and the tokens are not counted.
const tries = 3

// estimate returns roughly how many tokens a prompt has, rather too many than too few. If
// your model has a tokenizer, use that.
func estimate(prompt string) int { return len(prompt)/3 + 1 }
