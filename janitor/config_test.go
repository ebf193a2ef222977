package janitor

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, c := range []struct {
		config *Config
		want   Config // with the defaults
		err    string
	}{
		{config: nil, want: Config{Interval: time.Minute, BatchSize: 1000, Lease: 3 * time.Minute, KeepDenials: day}},
		{config: &Config{}, want: Config{Interval: time.Minute, BatchSize: 1000, Lease: 3 * time.Minute, KeepDenials: day}},
		{config: &Config{Interval: time.Second}, want: Config{Interval: time.Second, BatchSize: 1000, Lease: 30 * time.Second, KeepDenials: day}},
		{config: &Config{Interval: time.Millisecond, BatchSize: 1, Lease: time.Second, KeepDenials: time.Minute}, want: Config{Interval: time.Millisecond, BatchSize: 1, Lease: time.Second, KeepDenials: time.Minute}},
		{config: &Config{Interval: day, BatchSize: 10_000, Lease: 3 * day, KeepDenials: 90 * day}, want: Config{Interval: day, BatchSize: 10_000, Lease: 3 * day, KeepDenials: 90 * day}},
		{config: &Config{Interval: -time.Second}, err: "Interval -1s:"},
		{config: &Config{Interval: time.Millisecond - 1}, err: "Interval 999.999µs:"},
		{config: &Config{Interval: day + 1}, err: "Interval 24h0m0.000000001s:"},
		{config: &Config{BatchSize: -1}, err: "BatchSize -1:"},
		{config: &Config{BatchSize: 10_001}, err: "BatchSize 10001:"},
		{config: &Config{Lease: -1}, err: "Lease -1ns:"},
		{config: &Config{Lease: time.Second - 1}, err: "Lease 999.999999ms:"},
		{config: &Config{Lease: 3*day + 1}, err: "Lease 72h0m0.000000001s:"},
		{config: &Config{KeepDenials: time.Minute - 1}, err: "KeepDenials 59.999999999s:"},
		{config: &Config{KeepDenials: 90*day + 1}, err: "KeepDenials 2160h0m0.000000001s:"},
	} {
		j, err := New(idlePool(t), c.config)
		if c.err != "" {
			if j != nil || err == nil || !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), "janitor.Config."+c.err) {
				t.Errorf("%+v: %v, want %s", c.config, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c.config, err)
			continue
		}
		got, w := j.config, c.want
		if got.Interval != w.Interval || got.BatchSize != w.BatchSize || got.Lease != w.Lease || got.KeepDenials != w.KeepDenials || got.Logger != slog.Default() {
			t.Errorf("%+v: got %+v, want %+v", c.config, got, w)
		}
	}
	if _, err := New(nil, nil); err == nil || !strings.Contains(err.Error(), "pool nil") {
		t.Errorf("nil pool: got %v, want an error", err)
	}
	if _, err := NewSQL(nil, nil); err == nil || !strings.Contains(err.Error(), "db nil") {
		t.Errorf("nil db: got %v, want an error", err)
	}
}
