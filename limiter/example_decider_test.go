package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Mailer sends mails, within limits. It works in a transaction too: Mailer{l.InTx(tx)}.
type Mailer struct{ limits limiter.Decider }

var mails = limiter.Policy{Name: "mails", Algorithm: limiter.TokenBucket, Limit: 1, Period: time.Hour}

func (m Mailer) Send(ctx context.Context, to string) error {
	r, err := m.limits.Allow(ctx, mails, to)
	if err == nil && !r.Allowed {
		err = &limiter.DeniedError{Result: r}
	}
	return err
}

// broken is a fake. The methods that the test does not call are those of a nil Decider.
type broken struct{ limiter.Decider }

func (broken) Allow(context.Context, limiter.Policy, string) (limiter.Result, error) {
	return limiter.Result{}, limiter.ErrUnavailable
}

func ExampleDecider() {
	m := Mailer{limits: limiter.NewMemory(nil)}
	fmt.Println(m.Send(ctx, "alice"))
	var denied *limiter.DeniedError
	fmt.Println(errors.As(m.Send(ctx, "alice"), &denied))

	m = Mailer{limits: broken{}}
	fmt.Println(m.Send(ctx, "alice"))
	// Output:
	// <nil>
	// true
	// pglimit: database unavailable
}
