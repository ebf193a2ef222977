package janitor

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]*Config{"nil": nil, "zero": {}} {
		j, err := New(idlePool(t), cfg)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c := j.cfg
		if c.Interval != time.Minute || c.BatchSize != 1000 || c.Lease != 3*time.Minute || c.KeepDenials != 24*time.Hour || c.Logger != slog.Default() {
			t.Errorf("%s: got %+v", name, c)
		}
	}
	j, err := New(idlePool(t), &Config{Interval: time.Second})
	if err != nil || j.cfg.Lease != 30*time.Second {
		t.Errorf("default lease with short intervals: got %v, error %v; want 30s", j.cfg.Lease, err)
	}
}

func TestConfigWithinBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{
		{Interval: time.Millisecond, BatchSize: 1, Lease: time.Second, KeepDenials: time.Minute},
		{Interval: 24 * time.Hour, BatchSize: 10_000, Lease: 72 * time.Hour, KeepDenials: 90 * 24 * time.Hour},
	} {
		j, err := New(idlePool(t), &c)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if j.cfg.Interval != c.Interval || j.cfg.BatchSize != c.BatchSize || j.cfg.Lease != c.Lease || j.cfg.KeepDenials != c.KeepDenials {
			t.Errorf("got %+v, want %+v", j.cfg, c)
		}
	}
}

func TestConfigOutOfBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg         Config
		field, text string
	}{
		{Config{Interval: -time.Second}, "Interval", "-1s"},
		{Config{Interval: time.Millisecond - 1}, "Interval", "999.999µs"},
		{Config{Interval: 24*time.Hour + 1}, "Interval", "24h0m0.000000001s"},
		{Config{BatchSize: -1}, "BatchSize", "-1"},
		{Config{BatchSize: 10_001}, "BatchSize", "10001"},
		{Config{Lease: -1}, "Lease", "-1ns"},
		{Config{Lease: time.Second - 1}, "Lease", "999.999999ms"},
		{Config{Lease: 72*time.Hour + 1}, "Lease", "72h0m0.000000001s"},
		{Config{KeepDenials: time.Minute - 1}, "KeepDenials", "59.999999999s"},
		{Config{KeepDenials: 90*24*time.Hour + 1}, "KeepDenials", "2160h0m0.000000001s"},
	} {
		j, err := New(idlePool(t), &c.cfg)
		if err == nil {
			t.Errorf("%s = %s: no error", c.field, c.text)
			continue
		}
		if j != nil {
			t.Errorf("%s = %s: got a janitor with the error, want nil", c.field, c.text)
		}
		if got, want := err.Error(), "pglimit: janitor Config."+c.field+" is "+c.text+":"; !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want it to start with %q", got, want)
		}
	}
	if _, err := New(nil, nil); err == nil || !strings.Contains(err.Error(), "pool is nil") {
		t.Errorf("nil pool: got %v, want an error", err)
	}
}
