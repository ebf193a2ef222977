package browser

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pglimit/pglimit/limiter"
)

// TestSend: a card shows what its requests were answered, as a client gets it.
func TestSend(t *testing.T) {
	t.Parallel()
	p := start(t)
	b := open(t, p, five("alice"))
	for _, a := range limiter.Algorithms() {
		said := func(allowed, delayed, denied int) {
			t.Helper()
			b.Wait(string(a)+": a screen reader gets it", fmt.Sprintf("%s.endsWith(%q)", text("#said"), fmt.Sprintf(": %d allowed, %d delayed, %d denied.", allowed, delayed, denied)))
		}
		b.Wait(string(a)+": no mark in the plot", `!`+hasColour(a, "allowed"))
		b.Click(card(a, ".send"))
		b.Eventually(string(a)+": allowed, delayed, denied", counts(a), []int{1, 0, 0})
		b.Eventually(string(a)+": level", text(card(a, ".level")), "1")
		b.Eventually(string(a)+": remaining", text(card(a, ".remaining")), "4")
		b.Wait(string(a)+": a mark in the plot", hasColour(a, "allowed"))
		said(1, 0, 0)
		shown := Read[string](b, text(card(a, ".headers"))+".trim()")
		t.Logf("%s: the card shows\n%s", a, shown)
		if real := get(t, p, limited(a, "bob", "limit=5", "period=100h")); still(a, shown) != still(a, real) {
			t.Errorf("%s: a client would see\n%s", a, real)
		}

		want := burstOfTen(a)
		want[2]++
		b.Click(card(a, ".burst-10"))
		b.Eventually(string(a)+": allowed, delayed, denied", counts(a), want)
		b.Eventually(string(a)+": level", text(card(a, ".level")), "5")
		b.Eventually(string(a)+": remaining", text(card(a, ".remaining")), "0")
		b.Wait(string(a)+": marks of denials in the plot", hasColour(a, "denied"))
		said(want[0]-1, want[1], want[2])
		want[2]++
		b.Click(card(a, ".send"))
		b.Eventually(string(a)+": after another", counts(a), want)
		shown = Read[string](b, text(card(a, ".headers"))+".trim()")
		t.Logf("%s: the card shows\n%s", a, shown)
		real := get(t, p, limited(a, "alice", "limit=5", "period=100h"))
		if withoutTimes(shown) != withoutTimes(real) {
			t.Errorf("%s: a client sees\n%s", a, real)
		}
		if !strings.HasPrefix(shown, "HTTP/1.1 429 Too Many Requests\n") || !regexp.MustCompile(`(?m)^Retry-After: [1-9]\d*$`).MatchString(shown) {
			t.Errorf("%s: no 429 with a Retry-After", a)
		}
		want[2]++
		b.Eventually(string(a)+": that request is on the card, too", counts(a), want)
	}
}

// limited is the path of an algorithm's route for curl.
func limited(a limiter.Algorithm, key string, values ...string) string {
	query := url.Values{"key": {key}}
	for _, v := range values {
		name, value, _ := strings.Cut(v, "=")
		query.Set(name, value)
	}
	return "/limited/" + string(a) + "?" + query.Encode()
}

// get sends a request without the browser, and returns the answer: its status, the header
// fields about limits, and a problem's text.
func get(t *testing.T, p *Playground, path string) string {
	t.Helper()
	host := strings.TrimPrefix(p.URL, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, host)
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(strings.ReplaceAll(string(answer), "\r\n", "\n"), "\n\n")
	lines := slices.DeleteFunc(strings.Split(head, "\n"), func(line string) bool {
		name, _, _ := strings.Cut(line, ":")
		return slices.Contains([]string{"Connection", "Date", "Content-Length", "Content-Security-Policy", "Cross-Origin-Opener-Policy",
			"Cross-Origin-Resource-Policy", "Permissions-Policy", "Referrer-Policy", "X-Content-Type-Options", "X-Frame-Options"}, name)
	})
	if body == "allowed\n" { // which a card does not show
		body = ""
	}
	return strings.TrimSpace(strings.Join(lines, "\n") + "\n\n" + body)
}

var times = regexp.MustCompile(`(;t=|Retry-After: |Try again in )\d+`)

// withoutTimes removes what depends on the time of the request.
func withoutTimes(answer string) string { return times.ReplaceAllString(answer, "$1…") }

// still is an answer to a key's first hit, which depends on the time of the request only
// for windows aligned to the clock.
func still(a limiter.Algorithm, answer string) string {
	if a == limiter.SlidingWindowCounter {
		return withoutTimes(answer)
	}
	return answer
}

func TestReset(t *testing.T) {
	t.Parallel()
	p := start(t)
	b, other := open(t, p, five("alice")), open(t, p, five("alice"))
	bob := open(t, p, five("bob"))
	bob.Click("#burst-all")
	b.Click("#burst-all")
	for _, a := range limiter.Algorithms() {
		other.Eventually(string(a)+": allowed, delayed, denied", counts(a), burstOfTen(a))
	}
	b.Click("#reset")
	for _, tab := range []*Tab{b, other} {
		for _, a := range limiter.Algorithms() {
			tab.Eventually(string(a)+": reset", counts(a), []int{0, 0, 0})
			tab.Eventually(string(a)+": level", text(card(a, ".level")), "0")
			tab.Eventually(string(a)+": remaining", text(card(a, ".remaining")), "5")
			tab.Wait(string(a)+": the plot is empty", `!`+hasColour(a, "denied"))
		}
	}
	b.Click("#send-all")
	bob.Click("#send-all")
	for _, a := range limiter.Algorithms() {
		b.Eventually(string(a)+": it passes again", counts(a), []int{1, 0, 0})
		denied := burstOfTen(a)
		denied[2]++
		bob.Eventually(string(a)+": another key is not reset", counts(a), denied)
	}
	bob.Type("#key", "alice")
	bob.Click("#send-all")
	for _, a := range limiter.Algorithms() {
		second := []int{2, 0, 0}
		if a == limiter.LeakyBucketQueue {
			second = []int{1, 1, 0}
		}
		b.Eventually(string(a)+": alice sees what bob sends as alice", counts(a), second)
		bob.Eventually(string(a)+": and so does bob", text(card(a, ".level")), "2")
	}
}

func TestSlider(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), everyCard("alice", "limit=1000", "period=1h"))
	sent := func(a limiter.Algorithm, atLeast int) {
		b.Wait(fmt.Sprintf("%s: %d more", a, atLeast), fmt.Sprintf("%s.reduce((a, b) => a + b) >= %d", counts(a), atLeast))
	}
	b.Run("keep how often it is to send", `
		const original = setInterval
		window.setInterval = (f, ms) => { window.every = ms; return original(f, ms) }`)
	drive := func(slider string, output string, check func()) {
		b.Run("focus "+slider, fmt.Sprintf("$(%q).focus()", slider))
		b.Key("arrow right, ten times", strings.Repeat(kb.ArrowRight, 10))
		b.Eventually("what the slider says", output, "10")
		b.Eventually("a request every 100 ms", "every", 100)
		check()
		b.Key("home: back to 0", kb.Home)
		b.Eventually("what the slider says", output, "0")
	}
	for _, a := range limiter.Algorithms() {
		drive(card(a, ".rate"), fmt.Sprintf("$(%q).parentElement.querySelector('output').value", card(a, ".rate")), func() { sent(a, 3) })
	}
	b.quiet()
	drive("#rate-all", `$("output[for=rate-all]").value`, func() {
		for _, a := range limiter.Algorithms() {
			sent(a, 8)
		}
	})
	b.quiet()
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
	b.Logf("nothing more is sent")
}
