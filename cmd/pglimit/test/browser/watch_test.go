package browser

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pglimit/pglimit/limiter"
)

// TestWatch opens pages that do nothing and all of what watch reports.
func TestWatch(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(elsewhere.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := `<p>fine</p>`
		switch r.URL.Path {
		case "/bad":
			body = `<script>throw new Error("oops")</script><script>Promise.reject(new Error("later"))</script><script>console.error("I am", "lost")</script>
				<script src="/none.js"></script><p style="color: red">red</p><img src="` + elsewhere.URL + `/pixel.png">`
		case "/none.js":
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Security-Policy", "default-src 'unsafe-inline' data: *; style-src 'self'")
		fmt.Fprintf(w, "<!doctype html><link rel=icon href=data:,>%s<script>onload = () => document.title = 'loaded'</script>", body)
	}))
	t.Cleanup(server.Close)
	b := Open(t, chromium, server.URL)
	b.Wait("it is loaded", `document.title === "loaded"`)
	if seen := b.watch.left(); len(seen) > 0 {
		t.Errorf("of nothing: %q", seen)
	}
	b.Do("the bad one", chromedp.Navigate(server.URL+"/bad"))
	b.Wait("it is loaded", `document.title === "loaded"`)
	seen := b.watch.left()
	t.Logf("seen: %q", seen)
	for _, complaint := range []string{"exception: Uncaught Error: oops", "later", "lost", "404", "Content Security Policy", "elsewhere"} {
		if !slices.ContainsFunc(seen, func(c string) bool { return strings.Contains(c, complaint) }) {
			t.Errorf("nothing seen of %q", complaint)
		}
	}
	b.Tolerate("") // all of it
}

// TestServerGone stops the server, gracefully and by a kill, and starts it again.
func TestServerGone(t *testing.T) {
	t.Parallel()
	p := StartAt(t, command(t), migrated.New(t), quietPort(t))
	b := open(t, p, everyCard("alice", "limit=1000", "period=1h"))
	b.Tolerate("ERR_CONNECTION_REFUSED")
	b.Tolerate("ERR_INCOMPLETE_CHUNKED_ENCODING") // of the stream, when the server is killed
	b.Tolerate("ERR_CONNECTION_RESET")
	a := limiter.TokenBucket
	allowed := 0
	const problems = `$$(".problem").map(p => p.textContent).join("")`
	passes := func() {
		b.Click(card(a, ".send"))
		allowed++
		b.Eventually("allowed", counts(a), []int{allowed, 0, 0})
		b.Eventually("no problem", problems, "")
	}
	passes()
	for _, end := range []struct {
		how string
		end func()
	}{{"interrupt the server, with a tab that listens", p.Stop}, {"kill the server", p.Kill}} {
		t.Log(end.how)
		end.end()
		b.Wait("the status says so", text("#status")+`.startsWith("connection lost")`)
		b.Click(card(a, ".send"))
		b.Wait("a click does", text(card(a, ".problem"))+`.includes("does not answer")`)
		b.Click("#send-all")
		b.Wait("so does one for all", text("#problem")+`.includes("does not answer")`)
		t.Logf("%s; %s", Read[string](b, text("#status")), Read[string](b, text("#problem")))
		t.Log("start it again, where it was")
		p.Again()
		b.connected()
		b.Eventually("nothing says any more that it does not answer", problems, "")
		passes()
	}

	t.Log("the slider outlives the server")
	b.Run("focus the slider", fmt.Sprintf("$(%q).focus()", card(a, ".rate")))
	b.Key("arrow right, five times", kb.ArrowRight+kb.ArrowRight+kb.ArrowRight+kb.ArrowRight+kb.ArrowRight)
	b.Wait("it sends", fmt.Sprintf("%s[0] > %d", counts(a), allowed+2))
	p.Kill()
	b.Wait("the status says so", text("#status")+`.startsWith("connection lost")`)
	b.Wait("the card does", text(card(a, ".problem"))+`.includes("does not answer")`)
	allowed = Read[int](b, counts(a)+"[0]")
	p.Again()
	b.connected()
	b.Wait("it sends again", fmt.Sprintf("%s[0] > %d", counts(a), allowed+2))
	b.Wait("the problem is gone", text(card(a, ".problem"))+` === ""`)
}

// quietPort returns a free address that the system gives to no other program, so that it
// can be used again.
func quietPort(t *testing.T) string {
	t.Helper()
	for {
		addr := fmt.Sprint("localhost:", 20_000+rand.IntN(10_000)) // below those that systems give out
		l, err := net.Listen("tcp", addr)
		if err == nil {
			_ = l.Close()
			return addr
		}
		if t.Context().Err() != nil || !strings.Contains(err.Error(), "in use") {
			t.Fatal(err)
		}
	}
}

// TestServerLate opens the page while the server does not answer its requests.
func TestServerLate(t *testing.T) {
	t.Parallel()
	p := start(t)
	b := Open(t, chromium, p.URL, block("*://*:*/api/*", true))
	b.Tolerate("ERR_BLOCKED_BY_CLIENT")
	b.Tolerate("inspector") // who blocks
	b.Wait("the status says so", text("#status")+`.startsWith("connection lost")`)
	b.Wait("there is a message", text("#problem")+`.includes("does not answer")`)
	b.Do("the server answers", block("*://*:*/api/*", false))
	b.connected()
	b.Click("#send-all")
	for _, a := range limiter.Algorithms() {
		b.Eventually(string(a)+": allowed, delayed, denied", counts(a), []int{1, 0, 0})
	}
	b.Eventually("no message any more", text("#problem"), "")
}

// block makes requests to URLs of a pattern fail from now on, or lifts that.
func block(pattern string, yes bool) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
		_, err = cdp.Call(ctx, t, network.SetBlockedURLs, network.SetBlockedURLsParams{
			URLPatterns: []*network.BlockPattern{{URLPattern: pattern, Block: yes}},
		})
		return none, err
	}
}

// first runs a script before those of the page.
func first(script string) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
		_, err = cdp.Call(ctx, t, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		return none, err
	}
}

// keepSource keeps a reference to the stream of events.
const keepSource = `window.EventSource = class extends EventSource { constructor(url) { super(url); window.source = this } }`

// TestLate: a level older than the shown one is not shown. A decision from before an outage
// does not clear the outage's message, which is sent only once; levels do, because they follow
// every decision.
func TestLate(t *testing.T) {
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
