package browser

import (
	"context"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/pglimit/pglimit/limiter"
)

// first runs a script before those of the page.
func first(script string) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
		_, err = cdp.Call(ctx, t, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		return none, err
	}
}

// keepSource keeps a reference to the stream of events.
const keepSource = `window.EventSource = class extends EventSource { constructor(url) { super(url); window.source = this } }`

// TestLateLevel: a level older than the shown one is not shown.
func TestLateLevel(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), five("alice"), first(keepSource))
	a := limiter.SlidingWindowLog
	b.Click(card(a, ".burst-10"))
	b.Eventually("level", text(card(a, ".level")), "5")
	for late, want := range map[string]string{"-1000": "5", "+1000": "3"} {
		b.Eventually("a level "+late+" ms later", `(() => {
			const seen = {at: Date.now() `+late+`, level: 3, remaining: 2}
			source.dispatchEvent(new MessageEvent("levels", {data: JSON.stringify({levels: {sliding_window_log: seen}})}))
			return `+text(card(a, ".level"))+`
		})()`, want)
	}
}

// TestLateDecision: a decision from before an outage does not clear the outage's message,
// which is sent only once. Levels do, because they follow every decision.
func TestLateDecision(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), five("alice"), first(keepSource))
	said := Read[[]string](b, `["problem", "decision", "levels"].map(name => {
		const data = {error: "gone", levels: {}, algorithm: "gcra", outcome: "allowed", at: Date.now(), level: 1, remaining: 4, burst: 5, status: 200, headers: []}
		source.dispatchEvent(new MessageEvent(name, {data: JSON.stringify(data)}))
		return `+text("#problem")+`
	})`)
	if !slices.Equal(said, []string{"gone", "gone", ""}) {
		t.Errorf("after an outage, a decision and levels it says %q", said)
	}
}

// TestLateDescription: an answer about a card's earlier settings is not shown, and none
// about a policy that is invalid now.
func TestLateDescription(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), five("alice"))
	a := limiter.GCRA
	code := text(card(a, ".go"))
	b.Wait("the code is there", code+`.includes("5,")`)
	b.Run("hold an answer", `
		const original = fetch
		let hold = true
		window.fetch = async (url, options) => {
			const answer = await original(url, options)
			if (url === "/api/describe" && hold) {
				hold = false
				await new Promise(release => window.release = release)
			}
			return answer
		}`)
	b.Type(card(a, "[name=limit]"), "7")
	b.Wait("it is held", "window.release")
	b.Type(card(a, "[name=limit]"), "9")
	b.Wait("the code", code+`.includes("9,")`)
	b.Run("let go", `release(); for (let n = 0; n < 5; n++) await new Promise(requestAnimationFrame)`)
	b.Wait("the code is the same", code+`.includes("9,")`)
	b.Tolerate("status of 400")
	b.Type(card(a, "[name=period]"), "soon")
	b.Wait("a problem", text(card(a, ".problem")))
	b.Eventually("no code", code, "")
}

// TestOtherPolicy: a tab shows the capacity of the last decision, whichever client made
// it.
func TestOtherPolicy(t *testing.T) {
	t.Parallel()
	p := start(t)
	b, other := open(t, p, five("alice")), open(t, p, everyCard("alice", "limit=50", "period=1h"))
	a := limiter.SlidingWindowLog
	b.Wait("its own", `$("#card-sliding_window_log canvas").getAttribute("aria-label").includes(" of 5.")`)
	other.Click(card(a, ".send"))
	b.Eventually("remaining", text(card(a, ".remaining")), "49")
	b.Wait("the other's", `$("#card-sliding_window_log canvas").getAttribute("aria-label").includes(" of 50.")`)
}

// TestCopyTwice: a button that shows "copied" returns to its label.
func TestCopyTwice(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), five("alice"))
	holdClipboard(b, t)
	a := limiter.GCRA
	b.Click(card(a, "summary"))
	b.Run("keep what is to come", `
		const original = setTimeout
		window.later = []
		window.setTimeout = (f, ms) => ms === 1500 ? later.push(f) : original(f, ms)`)
	button := card(a, "[data-copy=go]")
	for n := range 2 {
		b.Click(button)
		b.Eventually("it is copied", "later.length", n+1)
		b.Eventually("it says so", text(button), "Copied")
	}
	b.Run("later", `for (const f of later) f()`)
	b.Eventually("what it is for", text(button), "Copy Go")
}
