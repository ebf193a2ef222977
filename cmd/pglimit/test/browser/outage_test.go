package browser

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/pglimit/pglimit/integration/testworld"
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
	for _, complaint := range []string{"exception: Uncaught Error: oops", "later", "lost", "404", "Content Security Policy", "elsewhere"} {
		if !slices.ContainsFunc(seen, func(c string) bool { return strings.Contains(c, complaint) }) {
			t.Errorf("nothing seen of %q in %q", complaint, seen)
		}
	}
	b.Tolerate("") // all of it
}

// TestServerGone stops the server, gracefully and by a kill, and starts it again. It measures
// the contrast of text, light and dark, while the page has all of its messages.
func TestServerGone(t *testing.T) {
	t.Parallel()
	p := StartAt(t, command(t), migrated.New(t), freeAddress(t))
	b := open(t, p, everyCard("alice", "limit=1000", "period=1h"))
	b.Tolerate("ERR_CONNECTION_REFUSED")
	b.Tolerate("ERR_INCOMPLETE_CHUNKED_ENCODING") // of the stream, when the server is killed
	b.Tolerate("ERR_CONNECTION_RESET")
	b.Tolerate("ERR_EMPTY_RESPONSE") // of a request in flight, when the server is killed
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
	for how, end := range map[string]func(){"interrupt the server, with a tab that listens": p.Stop, "kill the server": p.Kill} {
		t.Log(how)
		end()
		b.Wait("the status says so", text("#status")+`.startsWith("connection lost")`)
		b.Click(card(a, ".send"))
		b.Wait("a click does", text(card(a, ".problem"))+`.includes("does not answer")`)
		b.Click("#send-all")
		b.Wait("so does one for all", text("#problem")+`.includes("does not answer")`)
		b.legible(100)
		t.Log("start it again, where it was")
		p.Again()
		b.connected()
		b.Eventually("nothing says any more that it does not answer", problems, "")
		passes()
	}

	t.Log("traffic outlives the server")
	b.traffic("steady")
	b.Wait("it sends", fmt.Sprintf("%s[0] > %d", counts(a), allowed+2))
	p.Kill()
	b.Wait("the page says so", text("#problem")+`.includes("does not answer")`)
	allowed = Read[int](b, counts(a)+"[0]")
	p.Again()
	b.connected()
	b.Wait("it sends again", fmt.Sprintf("%s[0] > %d", counts(a), allowed+2))
	b.Wait("the problem is gone", text("#problem")+` === ""`)
}

// TestDatabaseGone: the page reports the outage until the database is back, also if it was
// opened during the outage. A plot shows no level for that time.
func TestDatabaseGone(t *testing.T) {
	t.Parallel()
	network := testworld.NewWire(t, migrated.New(t))
	p := Start(t, command(t), network.URL)
	b := open(t, p, five("alice"))
	b.Tolerate("status of 503")
	a := limiter.GCRA
	b.Do("scroll to the plot", scrollTo(card(a, "canvas")))
	b.Run("keep where the curve ends", `
		// The area under the curve is the only one that is filled and transparent.
		const {beginPath, lineTo, fill, clearRect} = CanvasRenderingContext2D.prototype, plot = $("#card-gcra canvas")
		let path = 0, right = 0
		window.toNow = window.before = 0 // frames
		const draw = (name, was, first) => CanvasRenderingContext2D.prototype[name] = function (...a) { if (this.canvas === plot) first(this, ...a); return was.apply(this, a) }
		draw("beginPath", beginPath, () => path = 0)
		draw("lineTo", lineTo, (c, x) => path = Math.max(path, x))
		draw("fill", fill, c => { if (c.fillStyle.startsWith("rgba")) right = Math.max(right, path) })
		draw("clearRect", clearRect, () => {
			if (right > plot.getBoundingClientRect().width - 9) toNow++
			else if (right > 0) before++
			right = 0
		})`)
	b.Click(card(a, ".burst-10"))
	b.Eventually("allowed, delayed, denied", counts(a), []int{5, 0, 5})
	b.Wait("the curve goes on to now", "toNow > 0")
	b.Run("count anew", "before = 0")
	network.Cut()
	b.Wait("a message", text("#problem")+`.includes("database unavailable")`)
	b.Wait("the curve ends before now", "before > 0")
	b.Click(card(a, ".send"))
	b.Wait("one on a card", text(card(a, ".problem"))+`.includes("database unavailable")`)
	late := open(t, p, five("bob"))
	late.Tolerate("status of 503")
	late.Wait("the code is there", text(card(a, ".go")))
	late.Wait("a message", text("#problem")+`.includes("database unavailable")`)
	network.Away.Store(false)
	b.Eventually("no message any more", text("#problem"), "")
	b.Eventually("allowed, delayed, denied", counts(a), []int{5, 0, 5})
	late.Click("#send-all")
	late.Eventually("allowed", counts(a), []int{1, 0, 0})
	late.Eventually("no message any more", text("#problem"), "")
}

// testServerLate opens the page while the server does not answer its requests.
func testServerLate(t *testing.T, p *Playground) {
	b := Open(t, chromium, p.URL, block("*://*:*/api/*", true))
	b.Tolerate("ERR_BLOCKED_BY_CLIENT")
	b.Tolerate("inspector") // who blocks
	b.Wait("the status says so", text("#status")+`.startsWith("connection lost")`)
	b.Wait("there is a message", text("#problem")+`.includes("does not answer")`)
	b.Do("the server answers", block("*://*:*/api/*", false))
	b.connected()
	b.Click("#send-all")
	b.Eventually("allowed, delayed, denied", tally, each([]int{1, 0, 0}, []int{1, 0, 0}))
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
