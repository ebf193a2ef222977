package janitor

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, c := range []struct {
		cfg  *Config
		want Config // with the defaults
		err  string
	}{
		{cfg: nil, want: Config{Interval: time.Minute, BatchSize: 1000, Lease: 3 * time.Minute, KeepDenials: day}},
		{cfg: &Config{}, want: Config{Interval: time.Minute, BatchSize: 1000, Lease: 3 * time.Minute, KeepDenials: day}},
		{cfg: &Config{Interval: time.Second}, want: Config{Interval: time.Second, BatchSize: 1000, Lease: 30 * time.Second, KeepDenials: day}},
		{cfg: &Config{Interval: time.Millisecond, BatchSize: 1, Lease: time.Second, KeepDenials: time.Minute}, want: Config{Interval: time.Millisecond, BatchSize: 1, Lease: time.Second, KeepDenials: time.Minute}},
		{cfg: &Config{Interval: day, BatchSize: 10_000, Lease: 3 * day, KeepDenials: 90 * day}, want: Config{Interval: day, BatchSize: 10_000, Lease: 3 * day, KeepDenials: 90 * day}},
		{cfg: &Config{Interval: -time.Second}, err: "Interval is -1s:"},
		{cfg: &Config{Interval: time.Millisecond - 1}, err: "Interval is 999.999µs:"},
		{cfg: &Config{Interval: day + 1}, err: "Interval is 24h0m0.000000001s:"},
		{cfg: &Config{BatchSize: -1}, err: "BatchSize is -1:"},
		{cfg: &Config{BatchSize: 10_001}, err: "BatchSize is 10001:"},
		{cfg: &Config{Lease: -1}, err: "Lease is -1ns:"},
		{cfg: &Config{Lease: time.Second - 1}, err: "Lease is 999.999999ms:"},
		{cfg: &Config{Lease: 3*day + 1}, err: "Lease is 72h0m0.000000001s:"},
		{cfg: &Config{KeepDenials: time.Minute - 1}, err: "KeepDenials is 59.999999999s:"},
		{cfg: &Config{KeepDenials: 90*day + 1}, err: "KeepDenials is 2160h0m0.000000001s:"},
	} {
		j, err := New(idlePool(t), c.cfg)
		if c.err != "" {
			if j != nil || err == nil || !strings.HasPrefix(err.Error(), "pglimit: janitor Config."+c.err) {
				t.Errorf("%+v: %v, want %s", c.cfg, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c.cfg, err)
			continue
		}
		got, w := j.cfg, c.want
		if got.Interval != w.Interval || got.BatchSize != w.BatchSize || got.Lease != w.Lease || got.KeepDenials != w.KeepDenials || got.Logger != slog.Default() {
			t.Errorf("%+v: got %+v, want %+v", c.cfg, got, w)
		}
	}
	if _, err := New(nil, nil); err == nil || !strings.Contains(err.Error(), "pool is nil") {
		t.Errorf("nil pool: got %v, want an error", err)
	}
	if _, err := NewSQL(nil, nil); err == nil || !strings.Contains(err.Error(), "db is nil") {
		t.Errorf("nil db: got %v, want an error", err)
	}
}
