package client

import (
	"context"
	"net/url"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// request is a request for a key, as the server reads it.
type request struct {
	Policy         string  `json:"policy"`
	Key            string  `json:"key"`
	Cost           float64 `json:"cost"`
	IdempotencyKey string  `json:"idempotency_key,omitempty"`
	Estimate       bool    `json:"estimate,omitempty"`
	Floor          float64 `json:"floor,omitempty"`
	Note           string  `json:"note,omitempty"`
}

func of(q limiter.Request) request {
	return request{q.Policy.Name, q.Key, q.Cost, q.IdempotencyKey, q.Estimate, q.Floor, q.Note}
}

// one sends a request with a Result as its answer.
func (l *Limiter) one(ctx context.Context, path string, body any) (limiter.Result, error) {
	var r result
	err := l.send(ctx, path, body, &r)
	if err != nil {
		return limiter.Result{}, err
	}
	return r.result(), nil
}

// Do requests request.Cost units, all or nothing.
func (l *Limiter) Do(ctx context.Context, request limiter.Request) (limiter.Result, error) {
	return l.one(ctx, "/v1/allow", of(request))
}

// Allow requests one unit.
func (l *Limiter) Allow(ctx context.Context, p limiter.Policy, key string) (limiter.Result, error) {
	return l.AllowN(ctx, p, key, 1)
}

// AllowN requests cost units, all or nothing.
func (l *Limiter) AllowN(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error) {
	return l.Do(ctx, p.Request(key, cost))
}

// AllowUpTo requests up to cost units and is granted what fits.
func (l *Limiter) AllowUpTo(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error) {
	return l.one(ctx, "/v1/allow-up-to", of(p.Request(key, cost)))
}

// AllowAll makes several requests, from 1 to 1,000: all are granted or none.
func (l *Limiter) AllowAll(ctx context.Context, requests ...limiter.Request) (limiter.Results, error) {
	var all together
	if err := l.send(ctx, "/v1/allow-all", ask(requests), &all); err != nil {
		return limiter.Results{DeniedBy: -1}, err
	}
	return all.results(), nil
}

// many is several requests, as the server reads them.
type many struct {
	Requests []request `json:"requests"`
}

func ask(requests []limiter.Request) many {
	all := many{make([]request, len(requests))}
	for i, q := range requests {
		all.Requests[i] = of(q)
	}
	return all
}

// together is a limiter.Results as the server writes it.
type together struct {
	Allowed    bool     `json:"allowed"`
	DeniedBy   *int     `json:"denied_by"`
	PerRequest []result `json:"per_request"`
}

func (all *together) results() limiter.Results {
	r := limiter.Results{Allowed: all.Allowed, DeniedBy: -1, PerRequest: results(all.PerRequest)}
	if all.DeniedBy != nil {
		r.DeniedBy = *all.DeniedBy
	}
	return r
}

func results(in []result) []limiter.Result {
	all := make([]limiter.Result, len(in))
	for i := range in {
		all[i] = in[i].result()
	}
	return all
}

// AllowAny requests one cost of the first of several pools that has room for it.
func (l *Limiter) AllowAny(ctx context.Context, requests ...limiter.Request) (limiter.Any, error) {
	return l.allowAny(ctx, false, requests)
}

// AllowAnySplit requests one cost of several pools together.
func (l *Limiter) AllowAnySplit(ctx context.Context, requests ...limiter.Request) (limiter.Any, error) {
	return l.allowAny(ctx, true, requests)
}

func (l *Limiter) allowAny(ctx context.Context, split bool, requests []limiter.Request) (limiter.Any, error) {
	body := struct {
		many
		Split bool `json:"split"`
	}{ask(requests), split}
	var given struct {
		Allowed    bool     `json:"allowed"`
		GrantedBy  *int     `json:"granted_by"`
		RetryAfter *float64 `json:"retry_after_s"`
		PerRequest []result `json:"per_request"`
	}
	if err := l.send(ctx, "/v1/allow-any", body, &given); err != nil {
		return limiter.Any{GrantedBy: -1}, err
	}
	a := limiter.Any{Allowed: given.Allowed, GrantedBy: -1, RetryAfter: seconds(given.RetryAfter), PerRequest: results(given.PerRequest)}
	if given.GrantedBy != nil {
		a.GrantedBy = *given.GrantedBy
	}
	return a, nil
}

// Check returns what AllowN would return and consumes nothing.
func (l *Limiter) Check(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error) {
	return l.one(ctx, "/v1/check", of(p.Request(key, cost)))
}

// Charge records cost units that were already spent, whatever the limit.
func (l *Limiter) Charge(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error) {
	return l.one(ctx, "/v1/charge", of(p.Request(key, cost)))
}

// Grant adds prepaid units to a key under a policy of the algorithm balance.
func (l *Limiter) Grant(ctx context.Context, p limiter.Policy, key string, units float64, o limiter.GrantOptions) (limiter.Result, error) {
	return l.one(ctx, "/v1/grant", struct {
		Policy         string    `json:"policy"`
		Key            string    `json:"key"`
		Units          float64   `json:"units"`
		Expires        time.Time `json:"expires,omitzero"`
		Priority       int       `json:"priority,omitempty"`
		Source         string    `json:"source,omitempty"`
		Note           string    `json:"note,omitempty"`
		IdempotencyKey string    `json:"idempotency_key,omitempty"`
	}{p.Name, key, units, o.Expires, o.Priority, o.Source, o.Note, o.IdempotencyKey})
}

// Refund gives cost units back, at most those in use.
func (l *Limiter) Refund(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error) {
	return l.one(ctx, "/v1/refund", of(p.Request(key, cost)))
}

// Reserve sets units aside for ttl, until Settle or Cancel.
func (l *Limiter) Reserve(ctx context.Context, q limiter.Request, ttl time.Duration) (limiter.Reservation, error) {
	return l.reserve(ctx, "/v1/reserve", q, ttl)
}

// ReserveUpTo sets up to q.Cost units aside for ttl, as many as fit, until Settle or Cancel.
func (l *Limiter) ReserveUpTo(ctx context.Context, q limiter.Request, ttl time.Duration) (limiter.Reservation, error) {
	return l.reserve(ctx, "/v1/reserve-up-to", q, ttl)
}

func (l *Limiter) reserve(ctx context.Context, path string, q limiter.Request, ttl time.Duration) (limiter.Reservation, error) {
	body := struct {
		request
		TTL string `json:"ttl"`
	}{of(q), ttl.String()}
	return l.hold(ctx, path, body)
}

// hold sends a request with a reservation or a ticket as its answer.
func (l *Limiter) hold(ctx context.Context, path string, body any) (limiter.Reservation, error) {
	var hold struct {
		Result    result     `json:"result"`
		ID        string     `json:"id"`
		ExpiresAt *time.Time `json:"expires_at"`
	}
	if err := l.send(ctx, path, body, &hold); err != nil {
		return limiter.Reservation{}, err
	}
	r := limiter.Reservation{Result: hold.Result.result(), ID: hold.ID}
	if hold.ExpiresAt != nil {
		r.ExpiresAt = *hold.ExpiresAt
	}
	return r, nil
}

// Settle ends a reservation with the units really spent.
func (l *Limiter) Settle(ctx context.Context, id string, units float64) (limiter.Result, error) {
	return l.one(ctx, "/v1/settle", struct {
		ID    string  `json:"id"`
		Units float64 `json:"units"`
	}{id, units})
}

// Cancel ends a reservation with nothing spent.
func (l *Limiter) Cancel(ctx context.Context, id string) error {
	return l.send(ctx, "/v1/cancel", map[string]string{"id": id}, nil)
}

// Attempt begins an attempt that may fail, such as a login.
func (l *Limiter) Attempt(ctx context.Context, p limiter.Policy, key string, o limiter.AttemptOptions) (limiter.Ticket, error) {
	body := map[string]string{"policy": p.Name, "key": key, "from": o.From}
	if o.TTL != 0 {
		body["ttl"] = o.TTL.String()
	}
	t, err := l.hold(ctx, "/v1/attempt", body)
	return limiter.Ticket(t), err
}

// Succeeded reports that an attempt succeeded. Log in only if it returns nil.
func (l *Limiter) Succeeded(ctx context.Context, id string) error {
	return l.send(ctx, "/v1/succeeded", map[string]string{"id": id}, nil)
}

// Failed reports that an attempt failed.
func (l *Limiter) Failed(ctx context.Context, id string) (limiter.Result, error) {
	return l.one(ctx, "/v1/failed", map[string]string{"id": id})
}

// Acquire takes a slot of one unit.
func (l *Limiter) Acquire(ctx context.Context, p limiter.Policy, key string) (limiter.Slot, error) {
	return l.DoAcquire(ctx, p.Request(key, 1), 0)
}

// DoAcquire takes a slot of request.Cost units for ttl; 0 is the policy's Period.
func (l *Limiter) DoAcquire(ctx context.Context, request limiter.Request, ttl time.Duration) (limiter.Slot, error) {
	var slot struct {
		Result    result     `json:"result"`
		ID        string     `json:"id"`
		Fence     int64      `json:"fence"`
		ExpiresAt *time.Time `json:"expires_at"`
	}
	err := l.send(ctx, "/v1/acquire", struct {
		Policy string  `json:"policy"`
		Key    string  `json:"key"`
		Cost   float64 `json:"cost"`
		TTL    string  `json:"ttl,omitempty"`
	}{request.Policy.Name, request.Key, request.Cost, lasting(ttl)}, &slot)
	if err != nil {
		return limiter.Slot{}, err
	}
	s := limiter.Slot{Result: slot.Result.result(), ID: slot.ID, Fence: slot.Fence}
	if slot.ExpiresAt != nil {
		s.ExpiresAt = *slot.ExpiresAt
	}
	return s, nil
}

// lasting returns a ttl as the server has it; "" for 0.
func lasting(ttl time.Duration) string {
	if ttl == 0 {
		return ""
	}
	return ttl.String()
}

// Renew moves the end of a slot to ttl from now; 0 is the policy's Period.
func (l *Limiter) Renew(ctx context.Context, id string, ttl time.Duration) (expiresAt time.Time, err error) {
	var renewed struct {
		ExpiresAt time.Time `json:"expires_at"`
	}
	err = l.send(ctx, "/v1/renew", struct {
		ID  string `json:"id"`
		TTL string `json:"ttl,omitempty"`
	}{id, lasting(ttl)}, &renewed)
	return renewed.ExpiresAt, err
}

// Release gives a slot back.
func (l *Limiter) Release(ctx context.Context, id string) error {
	return l.send(ctx, "/v1/release", map[string]string{"id": id}, nil)
}

// Usage returns what a key has spent, reserved and left.
func (l *Limiter) Usage(ctx context.Context, p limiter.Policy, key string) (limiter.Usage, error) {
	var u struct {
		Result       result     `json:"result"`
		Spent        float64    `json:"spent"`
		Reserved     float64    `json:"reserved"`
		Reservations int        `json:"reservations"`
		WindowEndsAt *time.Time `json:"window_ends_at"`

		// Of a balance.
		Granted float64       `json:"granted"`
		Expired float64       `json:"expired"`
		Debt    float64       `json:"debt"`
		Lots    []limiter.Lot `json:"lots"`
	}
	if err := l.send(ctx, "/v1/usage?"+url.Values{"policy": {p.Name}, "key": {key}}.Encode(), nil, &u); err != nil {
		return limiter.Usage{}, err
	}
	use := limiter.Usage{Result: u.Result.result(), Spent: u.Spent, Reserved: u.Reserved, Reservations: u.Reservations, Granted: u.Granted, Expired: u.Expired, Debt: u.Debt}
	if len(u.Lots) > 0 {
		use.Lots = u.Lots
	}
	if u.WindowEndsAt != nil {
		use.WindowEndsAt = *u.WindowEndsAt
	}
	return use, nil
}

// Block denies all requests for the key for d.
func (l *Limiter) Block(ctx context.Context, p limiter.Policy, key string, d time.Duration) error {
	return l.send(ctx, "/v1/block", map[string]string{"policy": p.Name, "key": key, "for": d.String()}, nil)
}

// Unblock lifts the key's block.
func (l *Limiter) Unblock(ctx context.Context, p limiter.Policy, key string) error {
	return l.send(ctx, "/v1/unblock", map[string]string{"policy": p.Name, "key": key}, nil)
}

// Reset forgets the key's units and its block.
func (l *Limiter) Reset(ctx context.Context, p limiter.Policy, key string) error {
	return l.send(ctx, "/v1/reset", map[string]string{"policy": p.Name, "key": key}, nil)
}

// result is a limiter.Result as the server writes it.
type result struct {
	Policy     string         `json:"policy"`
	At         time.Time      `json:"at"`
	Allowed    bool           `json:"allowed"`
	Granted    float64        `json:"granted"`
	Limit      float64        `json:"limit"`
	Burst      float64        `json:"burst"`
	Level      float64        `json:"level"`
	Remaining  float64        `json:"remaining"`
	RetryAfter *float64       `json:"retry_after_s"`
	ResetAfter *float64       `json:"reset_after_s"`
	Delay      *float64       `json:"delay_s"`
	Full       bool           `json:"full"`
	Reason     limiter.Reason `json:"reason"`
	Source     limiter.Source `json:"source"`
	Replayed   bool           `json:"replayed"`
	Expired    bool           `json:"expired"`
	Shadowed   bool           `json:"shadowed"`
	ByShadow   bool           `json:"by_shadow"`
}

func (r *result) result() limiter.Result {
	return limiter.Result{
		Policy: limiter.Policy{Name: r.Policy, Shadow: r.ByShadow}, At: r.At, Allowed: r.Allowed, Granted: r.Granted, Limit: r.Limit, Burst: r.Burst,
		Level: r.Level, Remaining: r.Remaining, RetryAfter: seconds(r.RetryAfter), ResetAfter: seconds(r.ResetAfter), Delay: seconds(r.Delay),
		Full: r.Full, Reason: r.Reason, Source: r.Source, Replayed: r.Replayed, Expired: r.Expired, Shadowed: r.Shadowed,
	}
}

// seconds returns a number of seconds, to the nanosecond that was written, or Never for null.
func seconds(s *float64) time.Duration {
	if s == nil || *s >= limiter.Never.Seconds() {
		return limiter.Never
	}
	whole := float64(int64(*s))
	return time.Duration(whole)*time.Second + time.Duration((*s-whole)*1e9+0.5)
}
