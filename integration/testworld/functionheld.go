package testworld

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func (f *Functions) Attempt(ctx context.Context, p limiter.Policy, key string, o limiter.AttemptOptions) (limiter.Ticket, error) {
	made, err := f.hold(ctx, "attempt", p.Request(key, 0), o.TTL, o.From)
	return limiter.Ticket(made), err
}

func (f *Functions) Succeeded(ctx context.Context, id string) error {
	return ticketOf(f.void(ctx, `pglimit.succeeded($1, $2)`, id, f.at()))
}

func (f *Functions) Failed(ctx context.Context, id string) (limiter.Result, error) {
	r, err := row[functionRow](ctx, f.Q, `SELECT * FROM pglimit.failed($1, $2)`, id, f.at())
	return r.result(), ticketOf(err)
}

func (f *Functions) Acquire(ctx context.Context, p limiter.Policy, key string) (limiter.Slot, error) {
	return f.DoAcquire(ctx, p.Request(key, 1), 0)
}

func (f *Functions) DoAcquire(ctx context.Context, in limiter.Request, ttl time.Duration) (made limiter.Slot, err error) {
	if f.Store != nil {
		f.Store(in.Policy)
	}
	sql, args := f.text("acquire", in, ttl.Seconds())
	r, err := row[struct {
		functionRow
		ID      *string
		Fence   *int64
		Expires *time.Time
	}](ctx, f.Q, "SELECT * FROM "+sql, args...)
	switch {
	case err != nil:
		return made, err
	case r.Allowed != (r.ID != nil) || r.Allowed != (r.Fence != nil) || r.Allowed != (r.Expires != nil):
		return made, fmt.Errorf("allowed %v, slot %v, fence %v, expires at %v", r.Allowed, r.ID, r.Fence, r.Expires)
	case r.Allowed:
		made.ID, made.Fence, made.ExpiresAt = *r.ID, *r.Fence, *r.Expires
	}
	made.Result = r.result()
	return made, nil
}

func (f *Functions) Renew(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
	var last *float64
	if s := ttl.Seconds(); ttl != 0 {
		last = &s
	}
	r, err := row[struct{ ExpiresAt time.Time }](ctx, f.Q, `SELECT pglimit.renew($1, $2, $3)`, id, last, f.at())
	return r.ExpiresAt, slotOf(err)
}

func (f *Functions) Release(ctx context.Context, id string) error {
	return slotOf(f.void(ctx, `pglimit.release($1, $2)`, id, f.at()))
}

// slotOf is ticketOf of a slot.
func slotOf(err error) error {
	if errors.Is(err, limiter.ErrNoReservation) {
		return fmt.Errorf("%w: %s", limiter.ErrNoSlot, err)
	}
	return err
}

// ticketOf returns the error of a report: its SQLSTATE is that of a missing reservation.
func ticketOf(err error) error {
	if errors.Is(err, limiter.ErrNoReservation) {
		return fmt.Errorf("%w: %s", limiter.ErrNoTicket, err)
	}
	return err
}
