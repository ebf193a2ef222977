package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
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

// follow applies the settings of another link in a tab that keeps its stream.
func (b *Tab) follow(link string) {
	b.Helper()
	b.Run("follow "+link, fmt.Sprintf("window.before = source; location.hash = %q", link))
	b.Wait("its stream is open", "source !== before && source.readyState === EventSource.OPEN")
}

// quiet checks that nothing is sent while the server publishes a dozen levels, which takes
// more than a second.
func (b *Tab) quiet() {
	b.Helper()
	before := b.Requests("POST /api/send")
	messages := 0
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	for _, err := range chromedp.Events(ctx, network.EventSourceMessageReceived) {
		if err != nil {
			b.Fatalf("wait for levels: %v", err)
		}
		if messages++; messages == 12 {
			break
		}
	}
	if more := b.Requests("POST /api/send") - before; more > 0 {
		b.Errorf("%d more requests were sent", more)
	}
}

// testLate: a level older than the shown one is not shown. A decision from before an outage
// does not clear the outage's message, which is sent only once; levels do, because they follow
// every decision.
func testLate(t *testing.T, p *Playground) {
	b := open(t, p, five(t.Name()), first(keepSource))
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
	said := Read[[]string](b, `["problem", "decision", "levels"].map(name => {
		const data = {error: "gone", levels: {}, algorithm: "gcra", outcome: "allowed", at: Date.now(), level: 1, remaining: 4, burst: 5, status: 200, headers: []}
		source.dispatchEvent(new MessageEvent(name, {data: JSON.stringify(data)}))
		return `+text("#problem")+`
	})`)
	if !slices.Equal(said, []string{"gone", "gone", ""}) {
		t.Errorf("after an outage, a decision and levels it says %q", said)
	}
}

// testLateDescription: an answer about a card's earlier settings is not shown, and none
// about a policy that is invalid now.
func testLateDescription(t *testing.T, p *Playground) {
	b := open(t, p, five(t.Name()))
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

// testClockSet sets the browser's clock while it receives events.
func testClockSet(t *testing.T, p *Playground) {
	b := open(t, p, five(t.Name()))
	a := limiter.GCRA
	b.Do("scroll to the plot", scrollTo(card(a, "canvas")))
	for _, hours := range []int{1, -1} {
		b.Run(fmt.Sprintf("the clock is set by %d h", hours), fmt.Sprintf(`const real = Date.now; Date.now = () => real() + %d * 3600_000`, hours))
		b.Click("#reset")
		b.Eventually("the live region says it", text("#said"), "All counters are reset.") // the counts were 0 before
		b.Wait("the plot is empty", "!"+hasColour(a, "denied"))
		b.Click(card(a, ".burst-10"))
		b.Eventually("allowed, delayed, denied", counts(a), []int{5, 0, 5})
		b.Wait("its marks are in the plot", hasColour(a, "denied"))
	}
}

// testKeyIsText shows keys with characters that HTML, URLs and shells escape, after one that
// is too long, of which the page says so.
func testKeyIsText(t *testing.T, p *Playground) {
	b := Open(t, chromium, p.URL+"/#key="+strings.Repeat("k", 257), first(keepSource))
	b.Tolerate("status of 400")
	b.Eventually("the status", text("#status"), "connection lost: key is 257 bytes long: 256 at most")
	for _, key := range []string{`<img src=x onerror="document.title='oops'">'` + "\tand \u0001", strings.Repeat("ä€😀", 28), "--help"} {
		b.follow(five(key))
		b.connected()
		b.Click("#send-all")
		b.Eventually("allowed", tally, each([]int{1, 0, 0}, []int{1, 0, 0}))
		command := text(card(limiter.SlidingWindowLog, ".command"))
		b.Wait("the command is there", command)
		out, err := shell(p, strings.Replace(Read[string](b, command), "pglimit allow", "pglimit allow --json", 1)).CombinedOutput()
		if err != nil || !regexp.MustCompile(`"remaining": ?3,`).Match(out) {
			t.Errorf("%q: the command gives %v: %s", key, err, out)
		}
		if title := Read[string](b, "document.title"); title != "pglimit playground" {
			t.Errorf("%q: the title is %q", key, title)
		}
	}
}

// hide makes the page hidden or visible, or both in turn: a browser without a window
// considers all its tabs visible.
func (b *Tab) hide(yes ...bool) {
	b.Helper()
	b.Run(fmt.Sprintf("hidden: %v", yes), fmt.Sprintf(`
		for (const value of [%s]) {
			Object.defineProperty(document, "hidden", {value, configurable: true})
			document.dispatchEvent(new Event("visibilitychange"))
		}`, strings.ReplaceAll(strings.Trim(fmt.Sprint(yes), "[]"), " ", ", ")))
}

// testManyTabs opens more tabs than a browser has connections for one host.
func testManyTabs(t *testing.T, p *Playground) {
	small := chromedp.EmulateViewport(320, 240) // so that seven tabs draw few plots
	first := open(t, p, five(t.Name()), small)
	tabs := []*Tab{first}
	another := func() *Tab {
		b := OpenBeside(t, first, p.URL+"/#"+five(t.Name()), small)
		b.connected()
		return b
	}
	for len(tabs) < 5 {
		tabs = append(tabs, another())
	}
	for _, b := range tabs {
		b.hide(true)
		b.Eventually("the status", `$("#status").dataset.state`, "paused")
	}
	another()
	last := another()
	last.Click("#burst-all")
	last.Eventually("allowed, delayed, denied", tally, burstOfTen)
	first.hide(false)
	first.connected()
	first.Eventually("levels", everywhere(".level"), each("5", "5"))
	first.hide(true, false) // at once: later it would pause
	first.Click("#send-all")
	first.Eventually("seen again in time, it goes on listening", counts(limiter.GCRA), []int{0, 0, 1})
	if n := first.Requests("GET /api/events"); n != 2 {
		t.Errorf("it opened %d streams, not one and another", n)
	}
}

// shell runs a line in a shell, with the built command and the playground's database.
func shell(p *Playground, line string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", line)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+p.database, "PATH="+filepath.Dir(p.command)+string(os.PathListSeparator)+os.Getenv("PATH"))
	return cmd
}
