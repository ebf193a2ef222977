package shards

import (
	"math"
	"strings"
	"testing"
)

// The numbers are hashtext's of PostgreSQL 15, for lengths around the hash's blocks of 12.
func TestHash(t *testing.T) {
	for text, want := range map[string]int32{
		"":                          -1477818771,
		"a":                         1075015857,
		"12345678":                  915794263,
		"123456789":                 1014187944,
		"user:42":                   -1579110294,
		"12345678901":               1650060602,
		"123456789012":              -2102057603,
		"1234567890123":             437480032,
		"üß€😀":                      843938214,
		sample:                      -4667638,
		strings.Repeat("long ", 50): 786237358,
	} {
		if got := Hash(text); got != want {
			t.Errorf("Hash(%q) = %d, want %d", text, got, want)
		}
	}
}

func TestTextOf(t *testing.T) {
	for _, hash := range []int32{math.MinInt32, math.MinInt32 + 1, -1, 0, 1, 123456789, math.MaxInt32} {
		if text := textOf(hash); len(text) != 12 || Hash(text) != hash {
			t.Errorf("textOf(%d) = %q, of %d bytes, hashes to %d", hash, text, len(text), Hash(text))
		}
	}
}

// A shard of one hash, as the isolation of a tenant makes, is found as well.
func TestOf(t *testing.T) {
	m := &Map{last: []int32{-1, Hash("user:42") - 1, Hash("user:42"), math.MaxInt32}}
	m.last[0] = Hash("user:42") - 1000
	for key, want := range map[string]int{
		textOf(math.MinInt32): 0,
		textOf(m.last[0]):     0,
		textOf(m.last[0] + 1): 1,
		"user:42":             2,
		textOf(m.last[2] + 1): 3,
		textOf(math.MaxInt32): 3,
		"a":                   3,
	} {
		if got := m.Of(key); got != want {
			t.Errorf("key %q, hash %d, is in shard %d, want %d", key, Hash(key), got, want)
		}
	}
}

func BenchmarkOf(b *testing.B) {
	m := &Map{}
	for i := range int64(32) {
		m.last = append(m.last, int32(math.MinInt32+(i+1)<<27-1))
	}
	for b.Loop() {
		m.Of("tenant:1234/user:42")
	}
}
