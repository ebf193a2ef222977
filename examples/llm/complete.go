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

// Chunk is a piece of an answer. Used is how many tokens were used up to here, the
// prompt's among them.
type Chunk struct {
	Text string
	Used int
}

// ttl is how long an answer may take. What is reserved for it comes back by itself
// after that, should its process be gone.
const ttl = 5 * time.Minute

type service struct {
	limits *limiter.Limiter
	model  Model
}

// complete answers a prompt of a tenant's, as the model goes along, and returns how
// many tokens that used. Where the tenant's budget has no room for as many as it may
// use at most, it is a *limiter.DeniedError and the model is not asked.
func (s *service) complete(ctx context.Context, out io.Writer, tenant, prompt string, maxTokens int) (used int, err error) {
	// Begun before the hold, and so ended before it: a stream that went on would use
	// what has been given back.
	ctx, stop := context.WithTimeout(ctx, ttl)
	defer stop()
	hold, err := s.reserve(ctx, tenant, prompt, maxTokens)
	if err != nil {
		return 0, err
	}
	defer func() {
		// Whoever asked may have gone away. What was used is used all the same.
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

// reserve sets aside what an answer may use at most. Keep the hold's ID with a job
// that another process is to finish.
func (s *service) reserve(ctx context.Context, tenant, prompt string, maxTokens int) (limiter.Reservation, error) {
	hold, err := s.limits.Reserve(ctx, budget.Request(tenant, float64(estimate(prompt)+maxTokens)), ttl)
	if err == nil && !hold.Result.Allowed {
		err = &limiter.DeniedError{Result: hold.Result}
	}
	return hold, err
}

// finish ends a hold with what was used. Any process may, and it may be repeated:
// the same number is counted once. Less than was reserved gives the rest back, more
// is recorded, and after ttl it is recorded too.
func (s *service) finish(ctx context.Context, hold string, used int) (err error) {
	for range tries {
		if used == 0 { // it failed before the model had read anything
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

// tries is how often finish tells what was used, at most. If it fails after all,
// what was reserved comes back when the hold expires, and the tokens are not counted.
const tries = 3

// estimate is about how many tokens a prompt has, rather too many than too few: take
// your model's own tokenizer if there is one.
func estimate(prompt string) int { return len(prompt)/3 + 1 }
