package limiter

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/must"
)

// offline returns a pool that never connects: New sends nothing.
func offline(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := must.OK(pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none"))(t)
	t.Cleanup(pool.Close)
	return pool
}

// TestConfigKeySecret: a secret that is set but empty or short is an error, because keys
// would be stored as they are, or under a secret that can be guessed. The error has the
// length and not the secret.
func TestConfigKeySecret(t *testing.T) {
	const all = "hunter2hunter2hunter2hunter2hunt"
	pool := offline(t)
	for length := range len(all) + 1 {
		config := &Config{KeySecret: []byte(all[:length])}
		_, pgx := New(pool, config)
		_, std := NewSQL(new(sql.DB), config)
		_, memory := NewMemory(config).Allow(t.Context(), Policy{Name: "p", Algorithm: GCRA, Limit: 1, Period: time.Second}, "k")
		for name, err := range map[string]error{"New": pgx, "NewSQL": std, "NewMemory": memory} {
			if length >= 16 {
				if err != nil {
					t.Errorf("%s: %d bytes: %v", name, length, err)
				}
				continue
			}
			if want := fmt.Sprintf("Config.KeySecret of %d bytes: ", length); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %d bytes: got %v, want ErrInvalid with %q", name, length, err, want)
			} else if strings.Contains(err.Error(), "hunt") || length > 0 && strings.Contains(err.Error(), fmt.Sprint(config.KeySecret)) {
				t.Errorf("%s: the error shows the secret: %v", name, err)
			}
		}
	}
	if _, err := New(pool, &Config{KeySecret: nil}); err != nil {
		t.Errorf("no secret: %v", err)
	}
}

// TestNewMemoryInvalidConfig: NewMemory has no error to return, so its methods return it.
// A policy that fails open does not hide it.
func TestNewMemoryInvalidConfig(t *testing.T) {
	ctx := context.Background()
	p := Policy{Name: "p", Algorithm: GCRA, Limit: 10, Period: time.Second, OnError: FailOpen}
	for want, config := range map[string]*Config{
		"Config.KeySecret of 0 bytes": {KeySecret: []byte{}},
		"Config.Timeout -1s":          {Timeout: -time.Second},
		"Config.BatchRows -1":         {BatchRows: -1},
		"Config.MaxKeys -1: must not be negative; for no bound use math.MaxInt": {MaxKeys: -1},
		"Config.BatchStatements -1": {BatchStatements: -1},
		"Config.MaxWaiting -2":      {MaxWaiting: -2},
		"Config.DenyCacheKeys -1":   {DenyCacheKeys: -1},
		"Config.BreakFor -1ns":      {BreakFor: -1},
	} {
		l := NewMemory(config)
		for _, v := range verbCalls {
			if err := v.call(ctx, l.engine, p); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %s: got %v", want, v.name, err)
			}
		}
		queue := p
		queue.Algorithm = LeakyBucketQueue
		if err := l.Wait(ctx, queue, "k", 1); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: Wait: got %v", want, err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("%s: Close: %v", want, err)
		}
	}
}
