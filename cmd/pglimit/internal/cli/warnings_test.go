package cli

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// TestWarnings: a warning is one line, once, and an error that is returned too is none.
func TestWarnings(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	l := Warnings(&text, slog.LevelWarn)
	for range 2 {
		l.Warn("pglimit: prepared statements get lost", "since_last", 3, "error", errors.New("pglimit: one\ntwo\x1b[2J"))
		l.Error("pglimit: no decision", "error", errors.New("misconfigured"))
		l.Info("pglimit: swept")
	}
	Warnings(&text, slog.LevelError).Error("pglimit: a stored policy is not valid")
	if want := "pglimit: prepared statements get lost: one; two\\u001b[2J\npglimit: a stored policy is not valid\n"; text.String() != want {
		t.Errorf("got %q, want %q", &text, want)
	}
}
