// Package browser opens the playground and the dashboard in a Chromium, for their tests and
// screenshots.
// It is a separate module, so that other users of the repository do not build chromedp.
//
// The Chromium or Chrome is the one named by CHROME, otherwise one that chromedp finds;
// scripts/setup browser installs one, or says how.
package browser

import (
	"context"
	"fmt"
	"os"

	"github.com/chromedp/chromedp"
)

// T is the part of testing.TB that this package uses.
type T interface {
	Helper()
	Name() string
	Cleanup(func())
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Launch starts a Chromium without a window. Open tabs with the context that it returns;
// close ends it.
func Launch(ctx context.Context) (_ context.Context, close func(), _ error) {
	options := chromedp.DefaultExecAllocatorOptions[:]
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // as root it does not start with one
	}
	if path := os.Getenv("CHROME"); path != "" {
		options = append(options, chromedp.ExecPath(path))
	}
	ctx, cancelAllocator := chromedp.NewExecAllocator(ctx, options...)
	ctx, cancel := chromedp.NewContext(ctx)
	close = func() {
		// Chromium removes its files if it may end by itself.
		bounded, end := context.WithTimeout(ctx, stepTimeout)
		_ = chromedp.Cancel(bounded)
		end()
		cancel()
		cancelAllocator()
	}
	if err := chromedp.Do(ctx); err != nil {
		close()
		return nil, nil, fmt.Errorf("start Chromium: %w; scripts/setup browser says how to get one", err)
	}
	return ctx, close, nil
}
