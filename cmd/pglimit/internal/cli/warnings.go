package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/pglimit/pglimit/internal/printable"
)

// Warnings returns a logger that writes each message once, as one line in the form of the
// command's errors. It leaves records above level most out: a Limiter's errors are returned
// too, and would be printed twice.
func Warnings(w io.Writer, most slog.Level) *slog.Logger {
	return slog.New(&warnings{w: w, most: most, written: map[string]bool{}})
}

type warnings struct {
	w    io.Writer
	most slog.Level

	mu      sync.Mutex
	written map[string]bool // messages
}

func (h *warnings) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && level <= h.most
}

func (h *warnings) Handle(_ context.Context, r slog.Record) error {
	text := strings.TrimPrefix(r.Message, "pglimit: ")
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.written[text] {
		return nil
	}
	h.written[text] = true
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && a.Key == "error" {
			text += ": " + message(err)
		}
		return true
	})
	_, err := fmt.Fprintf(h.w, "pglimit: %s\n", printable.Escape(text))
	return err
}

// WithAttrs and WithGroup are not used by this module's loggers: a line has the error only.
func (h *warnings) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *warnings) WithGroup(string) slog.Handler      { return h }
