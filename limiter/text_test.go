package limiter

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestPolicyTextErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{"name": "a", "perod": "1s"}`:     "perod",
		`{"name": "a", "period": "1 day"}`: `Period "1 day"`,
		`{"name": "a", "period": 60}`:      "period",
		`{"name": "a", "on_error": "no"}`:  `OnError "no"`,
		`{"name": "a", "durability": "s"}`: `Durability "s": must be durable or relaxed`,
		`{"name": "a", "block_for": "1y"}`: `BlockFor "1y"`,
	} {
		before := Policy{Name: "before"}
		p := before
		if err := json.Unmarshal([]byte(text), &p); err == nil || !strings.Contains(err.Error(), want) || p != before {
			t.Errorf("%s: got %v, %+v", text, err, p)
		}
	}
}

func TestResultJSON(t *testing.T) {
	data, err := json.Marshal(Result{RetryAfter: Never, ResetAfter: 1500 * time.Millisecond, Reason: ReasonLimit, Source: SourceMemory, Shadowed: true})
	want := `{"allowed":false,"granted":0,"limit":0,"burst":0,"level":0,"remaining":0,"retry_after_s":null,"reset_after_s":1.5,"delay_s":0,"full":false,"reason":"limit","source":"memory","shadowed":true}`
	if err != nil || string(data) != want {
		t.Errorf("got %s, %v", data, err)
	}
	if data, _ := json.Marshal(Result{}); strings.Contains(string(data), "shadowed") {
		t.Errorf("got %s", data)
	}
}

func TestNewWithoutPool(t *testing.T) {
	if _, err := New(nil, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if _, err := NewSQL(nil, nil); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "db nil: open one") {
		t.Errorf("database/sql: got %v", err)
	}
}

// TestPolicyTextDays: durations may be in days; they are written in Go's form.
func TestPolicyTextDays(t *testing.T) {
	var p Policy
	err := json.Unmarshal([]byte(`{"name":"a","algorithm":"gcra","limit":1,"period":"30d"}`), &p)
	if text, _ := json.Marshal(p); err != nil || p.Period != 720*time.Hour || !strings.Contains(string(text), `"period":"720h0m0s"`) {
		t.Errorf("%+v, %v, written as %s", p, err, text)
	}
}
