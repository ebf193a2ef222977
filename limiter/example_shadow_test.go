package limiter_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// A new limit is tried on real traffic before it denies anything.
func Example_shadow() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	export := limiter.Policy{Name: "export", Algorithm: limiter.FixedWindow, Limit: 2, Period: time.Hour, Shadow: true}
	for range 3 {
		r, err := l.Allow(ctx, export, "alice")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("allowed:", r.Allowed, "shadowed:", r.Shadowed, r.Reason, r.RetryAfter)
	}
	// Output:
	// allowed: true shadowed: false  0s
	// allowed: true shadowed: false  0s
	// allowed: true shadowed: true limit 1h0m0s
}

// One hook sees each call of each method: here it logs denials and errors. Metrics count
// there, too.
func ExampleConfig_observe() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	l := limiter.NewMemory(&limiter.Config{Now: noon, Observe: func(ctx context.Context, o limiter.Observation) {
		switch {
		case o.Err != nil:
			logger.ErrorContext(ctx, "no decision", "verb", o.Verb, "policy", o.Request.Policy.Name, "error", o.Err)
		case o.Result.Reason != "": // denied, or a shadow policy would have
			logger.InfoContext(ctx, "denied", "verb", o.Verb, "policy", o.Request.Policy.Name, "key", o.Request.Key,
				"reason", o.Result.Reason, "retry_after", o.Result.RetryAfter, "shadowed", o.Result.Shadowed)
		}
	}})
	login := limiter.Policy{Name: "login", Algorithm: limiter.FixedWindow, Limit: 1, Period: time.Minute}
	for range 2 {
		_, _ = l.Allow(ctx, login, "alice")
	}
	_ = l.Block(ctx, login, "bob", time.Hour)
	_, _ = l.Allow(ctx, login, "bob")
	_, _ = l.AllowN(ctx, login, "carol", 0)
	// Output:
	// level=INFO msg=denied verb=allow policy=login key=alice reason=limit retry_after=1m0s shadowed=false
	// level=INFO msg=denied verb=allow policy=login key=bob reason=blocked retry_after=1h0m0s shadowed=false
	// level=ERROR msg="no decision" verb=allow policy=login error="pglimit: invalid: cost 0: must be positive; Check at cost 0 reads without consuming"
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
