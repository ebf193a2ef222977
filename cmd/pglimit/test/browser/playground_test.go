package browser

import (
	"fmt"
	"go/format"
	"regexp"
	"strings"
	"testing"

	chrome "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/chromedp"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestPlayground runs the tests that share a playground. Each has different keys, which
// begin with its name.
func TestPlayground(t *testing.T) {
	t.Parallel()
	p := start(t)
	for name, test := range map[string]func(*testing.T, *Playground){
		"Controls": testControls, "Invalid": testInvalid, "LinkAndCopy": testLinkAndCopy, "Send": testSend, "Reset": testReset,
		"Traffic": testTraffic, "Edge": testEdge, "Late": testLate, "ServerLate": testServerLate, "LateDescription": testLateDescription, "ClockSet": testClockSet, "KeyIsText": testKeyIsText,
		"ManyTabs": testManyTabs, "Keyboard": testKeyboard, "Names": testNames, "Quiet": testQuiet, "NarrowAndWide": testNarrowAndWide,
		"NoShift": testNoShift, "Slots": testSlots, "Balance": testBalance, "Calm": testCalm, "Plot": testPlot, "ForcedColours": testForcedColours,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, p)
		})
	}
}

// testControls: each control is part of the request.
func testControls(t *testing.T, p *Playground) {
	b := open(t, p, five(t.Name()))
	b.Wait("the database is named", text("#database")+`.startsWith("PostgreSQL ")`)
	buckets := []limiter.Algorithm{limiter.LeakyBucket, limiter.LeakyBucketQueue, limiter.TokenBucket, limiter.GCRA}
	for field, want := range map[string][]limiter.Algorithm{
		"limit": limiter.Algorithms(), "burst": buckets, "tick": {limiter.LeakyBucket}, "aligned": {limiter.FixedWindow},
	} {
		b.Eventually("the cards with "+field, fmt.Sprintf(`$$("article.card [name=%s]").map(e => e.closest("article").id.slice(5))`, field), want)
	}
	b.Click(card(limiter.FixedWindow, "[name=aligned]"))
	b.Wait("aligned", text(card(limiter.FixedWindow, ".go"))+`.includes("Aligned:   true,")`)
	b.Click(card(limiter.FixedWindow, "[name=aligned]"))
	for _, c := range []struct {
		a                    limiter.Algorithm
		control, value, code string
	}{
		{limiter.TokenBucket, "limit", "7", "Limit:     7,"},
		{limiter.TokenBucket, "burst", "8.5", "Burst:     8.5,"},
		{limiter.LeakyBucket, "tick", "2s", "Tick:      2 * time.Second,"},
		{limiter.SlidingWindowLog, "period", "1m30s", "Period:    90 * time.Second,"},
		{limiter.GCRA, "block_for", "900h", "BlockFor:  900 * time.Hour,"},
		{limiter.GCRA, "cost", "3", ", 3)"},
	} {
		b.Type(card(c.a, "[name="+c.control+"]"), c.value)
		b.Wait(c.control+" is in the code", fmt.Sprintf("%s.includes(%q)", text(card(c.a, ".go")), c.code))
	}
	b.Click(card(limiter.GCRA, ".send"))
	b.Eventually("remaining after a cost of 3", text(card(limiter.GCRA, ".remaining")), "2")
	b.Click(card(limiter.TokenBucket, ".burst-10"))
	b.Eventually("allowed, delayed, denied", counts(limiter.TokenBucket), []int{8, 0, 2})

	t.Log("a calendar takes the period's place")
	period, zone := card(limiter.FixedWindow, "[name=period]"), card(limiter.FixedWindow, "[name=time_zone]")
	b.Wait("no time zone without a calendar", fmt.Sprintf("$(%q).disabled && !$(%q).disabled", zone, period))
	b.Do("choose days", chromedp.SendKeys(chromedp.CSS(card(limiter.FixedWindow, "[name=calendar]")), "day"))
	b.Wait("no period with a calendar", fmt.Sprintf("!$(%q).disabled && $(%q).disabled", zone, period))
	b.Type(zone, "Europe/Vienna")
	b.Click(card(limiter.FixedWindow, ".send"))
	b.Eventually("allowed", counts(limiter.FixedWindow), []int{1, 0, 0})
	b.Wait("it is in the code", text(card(limiter.FixedWindow, ".go"))+`.includes("Europe/Vienna")`)
}

// testInvalid: a mistake is shown beside its control, and nothing is sent.
func testInvalid(t *testing.T, p *Playground) {
	b := open(t, p, five(t.Name()))
	b.Tolerate("status of 400") // the browser's own words for such an answer
	for _, c := range []struct {
		a                     limiter.Algorithm
		control, wrong, right string
	}{
		{limiter.TokenBucket, "limit", "", "5"},
		{limiter.TokenBucket, "burst", "-2", ""},
		{limiter.FixedWindow, "period", "fast", "100h"},
		{limiter.GCRA, "cost", "0", "1"},
		{limiter.LeakyBucketQueue, "block_for", "1", ""},
	} {
		control := card(c.a, "[name="+c.control+"]")
		b.Type(control, c.wrong)
		b.Run("close the details", fmt.Sprintf(`$(%q).open = false`, card(c.a, ".policy")))
		b.Click(card(c.a, ".send"))
		b.Wait(fmt.Sprintf("%s: a message about %s, by its label, on that card only", c.a, c.control),
			fmt.Sprintf(`%s.startsWith($(%[2]q).labels[0].textContent + " ") && $(%[2]q).getAttribute("aria-invalid") === "true" && $(%[2]q).checkVisibility() &&
				$$(".card .problem").filter(p => p.textContent).length === 1 && $$("[aria-invalid=true]").length === 1`, text(card(c.a, ".problem")), control))
		b.Click("#burst-all")
		b.Wait("a message for all cards, too", fmt.Sprintf(`%s.includes($(%q).textContent)`, text("#problem"), card(c.a, "h2")))
		b.Type(control, c.right)
		b.Wait("the right value takes all messages away", `$$(".problem").every(p => !p.textContent) && !$("[aria-invalid=true]")`)
	}
	b.Click("#send-all")
	b.Eventually("nothing was sent until now", tally, each([]int{1, 0, 0}, []int{1, 0, 0}))
}

// testLinkAndCopy: the link has the set-up, and what is copied is what is shown. No other
// test may use the clipboard, which all tabs share.
func testLinkAndCopy(t *testing.T, p *Playground) {
	b := open(t, p, "")
	for _, name := range []string{"clipboard-read", "clipboard-write"} {
		must.OK(chromedp.Call(b.ctx, chrome.SetPermission, chrome.SetPermissionParams{
			Permission: &chrome.PermissionDescriptor{Name: name}, Setting: chrome.PermissionSettingGranted, BrowserContextID: chromedp.FromContext(b.ctx).BrowserContextID,
		}))(t)
	}
	const (
		copied   = `await navigator.clipboard.readText()`
		controls = `$$("#key, .controls [name]").map(e => (e.closest("article")?.id ?? "page") + " " + (e.name || e.id) + ": " + (e.type === "checkbox" ? e.checked : e.value))`
	)
	defaults := Read[[]string](b, controls)
	b.Type("#key", t.Name()+" & söhne=#1")
	b.Type(card(limiter.TokenBucket, "[name=burst]"), "9.5")
	b.Type(card(limiter.SlidingWindowLog, "[name=period]"), "1m30s")
	b.Type(card(limiter.GCRA, "[name=cost]"), "2")
	b.Click(card(limiter.FixedWindow, "[name=aligned]"))
	set := Read[[]string](b, controls)
	b.Click("#link")
	b.Wait("the live region says it", text("#said")+`.includes("copied")`)
	link := Read[string](b, copied)
	if is := Read[string](b, "location.href"); link != is {
		t.Errorf("copied is %s, the address is %s", link, is)
	}
	other := Open(t, chromium, link)
	other.connected()
	other.Eventually("the set-up in another tab", controls, set)
	other.Click(card(limiter.GCRA, ".send"))
	other.Wait("it counts", text(card(limiter.GCRA, ".headers"))+`.includes(";r=8;")`)

	b.Run("keep what is to come", `
		const original = setTimeout
		window.later = []
		window.setTimeout = (f, ms) => ms === 1500 ? later.push(f) : original(f, ms)`)
	b.Click(card(limiter.GCRA, ".code summary"))
	for form, is := range map[string]func(string) bool{
		"go":      func(s string) bool { _, err := format.Source([]byte(s)); return err == nil },
		"command": func(s string) bool { return strings.HasPrefix(s, "pglimit allow ") },
		"curl":    regexp.MustCompile(`^curl -i 'http://[^']+'$`).MatchString,
	} {
		b.Click(card(limiter.GCRA, "[data-copy="+form+"]"))
		b.Eventually("the live region says it", text("#said"), "Copied "+form+".")
		if got := Read[string](b, copied); got != Read[string](b, text(card(limiter.GCRA, "pre."+form))) || !is(strings.TrimSpace(got)) {
			t.Errorf("%s: %q is copied", form, got)
		}
	}
	button := card(limiter.GCRA, "[data-copy=go]")
	b.Click(button) // again, while it says so
	b.Eventually("it says so", text(button), "Copied")
	b.Wait("all will be taken back", `later.length >= 4`)
	b.Run("later", `for (const f of later) f()`)
	b.Eventually("what it is for", text(button), "Copy Go")

	b.Run("a link without a set-up is followed", `location.hash = ""`)
	b.Eventually("the set-up", controls, defaults)
}

// testSend: a card shows what its requests were answered, as a client gets it.
func testSend(t *testing.T, p *Playground) {
	b := open(t, p, five(t.Name()))
	queue := limiter.LeakyBucketQueue // which delays, too
	b.Wait("no mark in the plot", `!`+hasColour(queue, "allowed"))
	b.Click(card(queue, ".send"))
	b.Eventually("its counts", counts(queue), []int{1, 0, 0})
	b.Wait("a mark in the plot", hasColour(queue, "allowed"))
	b.Wait("a screen reader gets it", text("#said")+`.endsWith(": 1 allowed, 0 delayed, 0 denied.")`)
	b.Click("#burst-all")
	b.Eventually("the counts of all cards", tally, each([]int{5, 0, 5}, []int{1, 4, 6}))
	b.Eventually("levels", everywhere(".level"), each("5", "5"))
	b.Eventually("remaining", everywhere(".remaining"), each("0", "0"))
	b.Do("scroll to the plot", scrollTo(card(queue, "canvas")))
	for _, outcome := range []string{"delayed", "denied"} {
		b.Wait("marks in the plot: "+outcome, hasColour(queue, outcome))
	}
	b.Click("#send-all") // the last answers of the burst came in any order
	b.Wait("each card shows a client's answer", `$$(".headers").every(e => /^HTTP\/1.1 429 Too Many Requests\n/.test(e.textContent) &&
		/^Ratelimit: "playground(-gcra)?";r=0;t=\d+$/m.test(e.textContent) && /^Retry-After: [1-9]\d*$/m.test(e.textContent) && e.textContent.includes('"status":429'))`)
}

// testReset: a reset is on all tabs of the key, and on no others. A tab shows what any client
// sends, and the capacity of the last decision.
func testReset(t *testing.T, p *Playground) {
	b, other := open(t, p, five(t.Name())), open(t, p, five(t.Name()))
	bob := open(t, p, five(t.Name()+" of bob"))
	bob.Click("#burst-all")
	b.Click("#burst-all")
	other.Eventually("what the other tab sent", tally, burstOfTen)
	b.Click("#reset")
	for _, tab := range []*Tab{b, other} {
		tab.Eventually("reset", tally, each([]int{0, 0, 0}, []int{0, 0, 0}))
		tab.Eventually("levels", everywhere(".level"), each("0", "0"))
		tab.Eventually("remaining", everywhere(".remaining"), each("5", "5"))
		tab.Wait("the plot is empty", `!`+hasColour(limiter.GCRA, "denied"))
	}
	bob.Click("#send-all")
	bob.Eventually("another key is not reset", tally, each([]int{5, 0, 6}, []int{1, 4, 6}))
	b.Click("#send-all")
	b.Eventually("it passes again", tally, each([]int{1, 0, 0}, []int{1, 0, 0}))
	bob.Type("#key", t.Name())
	bob.Type(card(limiter.SlidingWindowLog, "[name=limit]"), "50")
	bob.Click("#send-all")
	b.Eventually("what bob sends as alice", tally, each([]int{2, 0, 0}, []int{1, 1, 0}))
	b.Wait("bob's limit", `$("#card-sliding_window_log canvas").getAttribute("aria-label").includes(" of 50.")`)
	bob.Eventually("levels", everywhere(".level"), each("2", "2"))
}

// testTraffic: each pattern sends as many requests as it says, when it says, until it is none.
func testTraffic(t *testing.T, p *Playground) {
	b := open(t, p, everyCard(t.Name(), "limit=1000", "period=1h"))
	b.Run("keep the steps, and take them at once", `
		const original = setTimeout
		window.waits = []
		window.setTimeout = (f, ms, ...a) => original(f, a.length ? (waits.push(ms), 5) : ms, ...a)
		window.sent = []
		const send = fetch
		window.fetch = (to, how) => { if (to === "/api/send") sent.push(JSON.parse(how.body).times); return send(to, how) }
		Math.random = () => .5`)
	b.Run("ten a second", `$("#rate").value = 10; $("#rate").dispatchEvent(new Event("input"))`)
	b.Eventually("what the slider says", `$("#rate").parentElement.querySelector("output").value`, "10")
	for pattern, want := range map[string]string{
		"steady": "[[100],[1]]", "bursts": "[[1000],[10]]",
		"crowd": "[[100],[1,2]]", // a random number of .5 is one request from a mean of .7 on, and two from 1.4 on
	} {
		b.Run("nothing is kept", `waits.length = sent.length = 0`)
		b.traffic(pattern)
		b.Wait(pattern+": requests", `sent.length > 40`) // the first 23 of a crowd are single
		b.traffic("")
		if got := Read[string](b, `JSON.stringify([[...new Set(waits)], [...new Set(sent)].sort()])`); got != want {
			t.Errorf("%s: waits and numbers are %s, want %s", pattern, got, want)
		}
	}
	b.quiet()
	if said := Read[string](b, text("#said")); said != "" {
		t.Errorf("a screen reader gets %q", said)
	}
}

// traffic selects a pattern.
func (b *Tab) traffic(pattern string) {
	b.Helper()
	b.Run("traffic: "+pattern, fmt.Sprintf(`const e = $("#traffic"); e.value = %q; e.dispatchEvent(new Event("input"))`, pattern))
}

// testEdge: bursts around the edge of a fixed window let nearly twice the limit pass in half
// a period, and a sliding log only the limit.
func testEdge(t *testing.T, p *Playground) {
	b := open(t, p, everyCard(t.Name(), "limit=10", "period=4s"), first(keepSource))
	const within = `(a => Math.max(0, ...allowed[a].map(at => allowed[a].filter(b => b >= at && b < at + 2000).length)))`
	b.Run("keep what is allowed", `
		window.allowed = {fixed_window: [], sliding_window_log: []}
		source.addEventListener("decision", e => { const d = JSON.parse(e.data); if (d.outcome === "allowed") allowed[d.algorithm]?.push(d.at) })`)
	b.traffic("edge")
	b.Eventually("the slider", `$("#rate").disabled`, true)
	b.Wait("twice the limit around an edge", within+`("fixed_window") >= 19`) // a late burst is another window's: then the next edge shows it
	b.traffic("")
	b.Eventually("the slider", `$("#rate").disabled`, false)
	if n := Read[int](b, within+`("sliding_window_log")`); n > 10 {
		t.Errorf("the sliding log allowed %d", n)
	}
	b.quiet()
}
