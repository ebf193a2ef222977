package browser

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pglimit/pglimit/limiter"
)

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
