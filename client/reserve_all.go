package client

import (
	"context"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// ReserveAll sets units of several requests aside for ttl, from 1 to 1,000: all are reserved or none.
func (l *Limiter) ReserveAll(ctx context.Context, ttl time.Duration, requests ...limiter.Request) (limiter.Reservations, error) {
	var all struct {
		Results   together  `json:"results"`
		IDs       []string  `json:"ids"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	body := struct {
		many
		TTL string `json:"ttl"`
	}{ask(requests), ttl.String()}
	if err := l.send(ctx, "/v1/reserve-all", body, &all); err != nil {
		return limiter.Reservations{Results: limiter.Results{DeniedBy: -1}}, err
	}
	return limiter.Reservations{Results: all.Results.results(), IDs: all.IDs, ExpiresAt: all.ExpiresAt}, nil
}

// SettleAll ends several reservations with the units really spent, or none: one number for all of
// them, or one for each of ids.
func (l *Limiter) SettleAll(ctx context.Context, ids []string, units ...float64) ([]limiter.Result, error) {
	var all struct {
		Results []result `json:"results"`
	}
	body := struct {
		IDs   []string  `json:"ids"`
		Units []float64 `json:"units"`
	}{append([]string{}, ids...), append([]float64{}, units...)}
	if err := l.send(ctx, "/v1/settle-all", body, &all); err != nil {
		return nil, err
	}
	return results(all.Results), nil
}

// CancelAll ends several reservations with nothing spent, or none.
func (l *Limiter) CancelAll(ctx context.Context, ids ...string) error {
	return l.send(ctx, "/v1/cancel-all", map[string][]string{"ids": append([]string{}, ids...)}, nil)
}
