// Package browser opens the playground and the dashboard in a Chromium, for their tests and
// screenshots.
// It is a separate module, so that other users of the repository do not build chromedp.
//
// The Chromium or Chrome is the one named by CHROME, otherwise one that chromedp finds;
// scripts/setup browser installs one, or says how.
package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/runtime"
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

// stepTimeout bounds a step, and what a server takes to start and to stop; nothing is measured
// by it. A step of a busy machine has taken more than a minute.
const stepTimeout = 5 * time.Minute

// prelude is the functions that expressions may use.
const prelude = `const $ = s => document.querySelector(s), $$ = s => [...document.querySelectorAll(s)];`

// Tab is a tab of a separate browser context, which shares no cookies, storage and
// permissions with others. A step that fails or takes too long ends the test, with a
// picture of the page. So do the page's complaints when the test ends: see watch.
type Tab struct {
	T
	ctx, browser context.Context
	watch        *watch
}

// Open opens a tab of the browser and goes to a URL.
func Open(t T, browser context.Context, url string, before ...chromedp.Action[chromedp.Void]) *Tab {
	t.Helper()
	return openIn(t, browser, chromedp.WithNewBrowserContext(), url, before...)
}

// OpenBeside opens a tab of the same browser context: they share its connections.
func OpenBeside(t T, other *Tab, url string, before ...chromedp.Action[chromedp.Void]) *Tab {
	t.Helper()
	return openIn(t, other.browser, chromedp.WithExistingBrowserContext(chromedp.FromContext(other.ctx).BrowserContextID), url, before...)
}

func openIn(t T, browser context.Context, in chromedp.ContextOption, url string, before ...chromedp.Action[chromedp.Void]) *Tab {
	t.Helper()
	origin := url
	if scheme, rest, ok := strings.Cut(url, "://"); ok {
		host, _, _ := strings.Cut(rest, "/")
		origin = scheme + "://" + host
	}
	b := &Tab{T: t, browser: browser, watch: &watch{origin: origin, requests: map[string]int{}}}
	var cancel func()
	b.ctx, cancel = chromedp.NewContext(browser, in, chromedp.WithListener(b.watch.see))
	t.Cleanup(func() {
		cancel()
		for _, c := range b.watch.left() {
			t.Errorf("%s", c)
		}
	})
	// The tab lives as long as the context of the first Do, which therefore has no timeout.
	if err := chromedp.Do(b.ctx); err != nil {
		t.Fatalf("open a tab: %v", err)
	}
	address, _, _ := strings.Cut(url, "#")
	b.Do("open "+address, append(before, chromedp.Navigate(url))...)
	return b
}

// Tolerate accepts complaints that contain one of these texts.
func (b *Tab) Tolerate(part string) {
	b.watch.mu.Lock()
	defer b.watch.mu.Unlock()
	b.watch.tolerated = append(b.watch.tolerated, part)
}

// Requests returns how many requests the page has sent, by method and path, such as "POST
// /api/send".
func (b *Tab) Requests(what string) int {
	b.watch.mu.Lock()
	defer b.watch.mu.Unlock()
	return b.watch.requests[what]
}

// Do runs actions as one step.
func (b *Tab) Do(step string, actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	b.Logf("%s", step)
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.fail(step, err)
	}
}

// Do runs an action with a result as one step.
func Do[R any](b *Tab, step string, action chromedp.Action[R]) (result R) {
	b.Helper()
	b.Do(step, func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
		result, err = action(ctx, t)
		return none, err
	})
	return result
}

// Read returns the value of a JavaScript expression.
func Read[R any](b *Tab, expression string) R {
	b.Helper()
	result, err := read[R](b, expression)
	if err != nil {
		b.fail("read "+expression, err)
	}
	return result
}

func read[R any](b *Tab, expression string) (R, error) {
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	return chromedp.Run(ctx, evaluate[R](`(async () => { `+prelude+` return (`+expression+`) })()`))
}

func evaluate[R any](expression string) chromedp.Action[R] {
	return chromedp.Evaluate[R](expression, chromedp.EvalAwaitPromise, func(p *runtime.EvaluateParams) {
		yes := true
		p.UserGesture = &yes // the clipboard requires one
	})
}

// Run evaluates statements as one step.
func (b *Tab) Run(step, statements string) {
	b.Helper()
	b.Do(step, evaluate[chromedp.Void](`(async () => { `+prelude+statements+` })()`))
}

// Wait waits until a JavaScript expression, evaluated before each frame, is true and does
// not throw. (chromedp.Poll needs eval, which the page's policy forbids.)
func (b *Tab) Wait(step, expression string) {
	b.Helper()
	b.Logf("%s", step)
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	err := chromedp.Do(ctx, evaluate[chromedp.Void](`new Promise(done => {
		`+prelude+`
		const look = () => {
			try { if (`+expression+`) return done() } catch {}
			requestAnimationFrame(look)
		}
		look()
	})`))
	if err != nil {
		b.fail(step, err)
	}
}

// Eventually waits until a JavaScript expression equals a value, as JSON.
func (b *Tab) Eventually(step, expression string, want any) {
	b.Helper()
	wanted, err := json.Marshal(want)
	if err != nil {
		b.Fatalf("%v", err)
	}
	step = fmt.Sprintf("%s: %s", step, wanted)
	b.Logf("%s", step)
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	err = chromedp.Do(ctx, evaluate[chromedp.Void](fmt.Sprintf(`new Promise(done => {
		%s
		const wanted = JSON.stringify(%s)
		const look = () => {
			try { if (JSON.stringify(%s) === wanted) return done() } catch {}
			requestAnimationFrame(look)
		}
		look()
	})`, prelude, wanted, expression)))
	if err != nil {
		is, readErr := read[string](b, `JSON.stringify(`+expression+`) ?? "undefined"`)
		b.fail(step, fmt.Errorf("it is %s: %w", is, errors.Join(err, readErr)))
	}
}

// Click clicks the middle of an element, in details that are open, scrolled to where nothing is
// over it.
func (b *Tab) Click(selector string) {
	b.Helper()
	b.Do("click "+selector, scrollTo(selector), chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
}

func scrollTo(selector string) chromedp.Action[chromedp.Void] {
	return evaluate[chromedp.Void](fmt.Sprintf(reveal+`e?.scrollIntoView({block: "center"}) }`, selector))
}

// reveal opens the details that an element e is in, and begins a block.
const reveal = `{ const e = document.querySelector(%q); if (e && e.localName !== "summary") e.closest("details")?.setAttribute("open", ""); `

// Type replaces the text of an input as a user does, and leaves the input.
func (b *Tab) Type(selector, text string) {
	b.Helper()
	b.Do(fmt.Sprintf("type %q into %s", text, selector),
		evaluate[chromedp.Void](fmt.Sprintf(reveal+`e.focus(); e.select() }`, selector)),
		func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
			_, err = cdp.Call(ctx, t, input.InsertText, input.InsertTextParams{Text: text})
			return none, err
		},
		evaluate[chromedp.Void](`document.activeElement.blur()`),
	)
}

// Key presses keys at the focus.
func (b *Tab) Key(step, keys string, options ...chromedp.KeyOption) {
	b.Helper()
	b.Do(step, chromedp.KeyEvent(keys, options...))
}

// Media emulates a user's preferences, such as prefers-color-scheme: dark.
func (b *Tab) Media(name, value string) {
	b.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: name, Value: value}},
	}); err != nil {
		b.fail(name+": "+value, err)
	}
	b.Wait(name+": "+value, fmt.Sprintf(`matchMedia("(%s: %s)").matches`, name, value))
}

// fail ends the test with the error of a step.
func (b *Tab) fail(step string, err error) {
	b.Helper()
	for _, c := range b.watch.left() {
		b.Logf("%s", c)
	}
	b.picture()
	b.Fatalf("%s: %v", step, err)
}

// picture saves a picture of the tab.
func (b *Tab) picture() {
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	image, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.Logf("no picture of the page: %v", err)
		return
	}
	name := strings.NewReplacer("/", "-", " ", "-").Replace(b.Name())
	f, err := os.CreateTemp("", "pglimit-"+filepath.Base(name)+"-*.png")
	if err == nil {
		_, err = f.Write(image)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		b.Logf("no picture of the page: %v", err)
		return
	}
	b.Logf("the page then: %s", f.Name())
}
