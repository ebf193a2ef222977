package browser

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard/sample"
)

// operated is a dashboard over a sample.
type operated struct {
	*Dashboard
	source *sample.Source
}

// often is how often the page of a test loads data; seldom is so that it does not.
const (
	often  = 50 * time.Millisecond
	seldom = time.Hour
)

// operate starts a dashboard over the hostile sample.
func operate(t *testing.T, refresh time.Duration) operated {
	t.Helper()
	o := operated{source: sample.New(true)}
	o.Dashboard = StartDashboard(t, o.source, refresh)
	return o
}

// view opens a page of the dashboard without the token, and waits until it is complete. Its
// requests do not time out, as a busy machine's would.
func (o operated) view(t *testing.T, page string) *Tab {
	t.Helper()
	b := Open(t, chromium, o.URL+"/"+page, first(`AbortSignal.timeout = () => null`))
	b.complete()
	return b
}

// change opens a page of the dashboard with the token.
func (o operated) change(t *testing.T, page string) *Tab {
	t.Helper()
	b := o.view(t, "#token="+o.Token)
	b.visit(page)
	return b
}

func (b *Tab) complete() {
	b.Helper()
	b.Wait("the page is complete", `$("#status").dataset.state === "connected" && $("main").children.length > 1`)
}

// visit goes to another page, as a link does.
func (b *Tab) visit(page string) {
	b.Helper()
	b.Run("go to "+page, fmt.Sprintf(`document.title = "left"; if (location.hash === %q) location.hash = "#/nowhere"; location.hash = %q`, page, page))
	b.Wait("it is shown", `document.title !== "left" && $("main").children.length > 1`)
}

// keyPage is the address of a key's page.
func keyPage(key string) string {
	return "#/key/" + base64.RawURLEncoding.EncodeToString([]byte(key))
}

var dashboardPages = []string{"#/", "#/policies", "#/policies/login", "#/policies/api", "#/keys", "#/doctor", keyPage("account-42"), keyPage(sample.Hostile[0]), keyPage(sample.Hostile[2])}

// TestDashboardPages: each page shows what the source has, by its address. The chart has a
// bar for each part of a slot, a description, and the same as a table.
func TestDashboardPages(t *testing.T) {
	t.Parallel()
	o := operate(t, seldom)
	b := o.view(t, "")
	for page, wants := range map[string][]string{
		"#/":                     {"Denials over time", "login: 1,619", "All checks", "no sweep for 3 h 12 min", "pglimit janitor --interval 1m", "203.0.113.99", "1,304", "blocked, ends in 14 min"},
		"#/policies":             {"100,000 per calendar month, Europe/Vienna", "shadow: denies nothing", "blocks for 15m", "Version 41", "before 10 → after 5", "signup removed"},
		"#/policies/login":       {"Policy login", "token bucket", "5 per 1m, burst 10", "after the attack in May", "block_for: after 15m", "Most denied keys", "1,304", "Denials over time", "unlimited"},
		"#/policies/exports":     {"all keys have the limits of the policy", "None are counted"},
		"#/policies/api":         {"key_partner_1", "limit 6,000", "contract until June"},
		"#/policies/signup":      {"Policy signup", "it was removed", "fixed_window"},
		"#/keys?order=recent":    {"203.0.113.99", "Last request"},
		"#/keys?policy=crawl":    {"partner-0", "leaky bucket, queue"},
		"#/doctor":               {"1 failed, 1 warning, 1 unchecked in 8 checks", "As a superuser:", "Next: restart the server", "shop-web: 71", "no other role can create objects"},
		keyPage("account-42"):    {"Key account-42", "99.3 %", "99,310 of 100,000", "690", "budget/account-42/5eed0000", "1,200", "in 9 min", "units in the last 30 days, most"},
		keyPage("key_partner_1"): {"limit 6,000", "contract until June"},
		keyPage("nobody"):        {"The key has no row"},
		"#/key/%%%":              {"no such page"},
		"#/nothing":              {"no such page"},
	} {
		b.visit(page)
		for _, want := range wants {
			b.Wait(page+" has "+want, fmt.Sprintf(`$("main").textContent.replace(/\s+/g, " ").includes(%q)`, want))
		}
	}
	b.visit("#/keys?policy=crawl")
	b.Wait("the filter keeps others away", `$$("tbody tr").length === 14 && !$("tbody").textContent.includes("login")`)

	b.visit("#/")
	if bars := Read[int](b, `$$(".chart rect:not(.slot)").length`); bars < 300 {
		t.Errorf("%d bars", bars)
	}
	if words := Read[string](b, `$(".chart").getAttribute("aria-label")`); !strings.Contains(words, "7,780 in all, most (273) in the ten minutes from") {
		t.Errorf("the chart's words: %s", words)
	}
	b.Click("summary")
	b.Wait("the table is there", `$$("details tbody tr").length === 144 && $("details table").checkVisibility()`)
	sum := Read[float64](b, `$$("details tbody tr").reduce((sum, r) => sum + Number(r.children[1].textContent.replace(",", "")), 0)`)
	if sum != 7780 {
		t.Errorf("the table's sum is %v", sum)
	}
	// Bars do not overlap, and bars and labels are inside.
	if bad := Read[int](b, `(() => {
		const box = $(".chart").getBoundingClientRect()
		return $$(".chart rect, .chart text").filter(r => { const b = r.getBoundingClientRect(); return b.left < box.left || b.right > box.right + 1 || b.top < box.top || b.bottom > box.bottom }).length
	})()`); bad != 0 {
		t.Errorf("%d bars are outside the chart", bad)
	}
	if bad := Read[int](b, `$$(".chart g").filter(g => {
		const bars = [...g.querySelectorAll("rect:not(.slot)")].map(r => r.getBoundingClientRect())
		const sum = bars.reduce((sum, b) => sum + b.height, 0), span = Math.max(...bars.map(b => b.bottom)) - Math.min(...bars.map(b => b.top))
		return bars.length && Math.abs(sum - span) > 0.5
	}).length`); bad != 0 {
		t.Errorf("in %d slots bars overlap", bad)
	}
}

// TestDashboardChart: a chart has the span that is chosen, also after it is loaded again, and
// its legend has the numbers of the slot under the pointer. Large numbers stay in the panel.
func TestDashboardChart(t *testing.T) {
	t.Parallel()
	o := operate(t, often)
	b := o.view(t, "#/")
	sums := func(what, want string) {
		t.Helper()
		b.Wait(what, fmt.Sprintf(`$(".legend").textContent.includes(%q)`, want))
	}
	sums("a day", "24 hours: 7,780")
	b.Run("point at a slot", `$$(".slot").at(-1).dispatchEvent(new PointerEvent("pointerover", {bubbles: true}))`)
	b.Wait("its numbers", `$(".legend").textContent.match(/^\d\d:\d\d – \d\d:\d\d: 57/)`)
	o.source.Turn()
	b.Wait("its numbers stay, and are new", `$(".legend").textContent.match(/^\d\d:\d\d – \d\d:\d\d: 62/)`)
	b.Run("point elsewhere", `document.body.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}))`)
	sums("all again", "24 hours: 7,785")
	for hours, want := range map[string]struct {
		slots int
		sum   string
	}{"1": {60, "1 hour: "}, "6": {36, "6 hours: "}, "168": {168, "7 days: 7,785"}} {
		b.Click(fmt.Sprintf(`[data-do=span][data-hours="%s"]`, hours))
		sums(hours+" hours", want.sum)
		b.Wait("its slots and its address", fmt.Sprintf(`$$(".slot").length === %d && location.hash === "#/?hours=%s" && $("[aria-pressed=true]").dataset.hours === "%[2]s"`, want.slots, hours))
	}
	b.Do("load again", chromedp.Reload())
	b.complete()
	b.Wait("the span is there", `$$(".slot").length >= 6 && location.hash.includes("hours=")`)

	o.source.Deny("login", 98_765)
	for _, width := range []int64{320, 1280} {
		b.resize(width)
		for _, page := range []string{"#/?hours=1", "#/?hours=6", "#/", "#/?hours=168"} {
			b.visit(page)
			b.Wait("a large number", `$$(".chart text").some(e => e.textContent === "100,000")`)
			if bad := Read[[]string](b, `(() => {
				const box = $(".chart").closest(".panel").getBoundingClientRect(), labels = $$(".chart text").map(e => [e.textContent, e.getBoundingClientRect()])
				return labels.filter(([, l], i) => l.left < box.left + 1 || l.right > box.right - 1
					|| labels.some(([, o], j) => j > i && o.left < l.right && o.right > l.left && o.top < l.bottom - 4 && o.bottom > l.top + 4)).map(([text]) => text)
			})()`); len(bad) > 0 {
				t.Errorf("at %d px, %s: these labels are outside or cover others: %q", width, page, bad)
			}
		}
	}
}

// TestDashboardRoutes: links, deep links, back and forward work, and the focus goes to the
// new page's heading.
func TestDashboardRoutes(t *testing.T) {
	t.Parallel()
	o := operate(t, often)
	b := o.view(t, keyPage("alice"))
	b.Eventually("a deep link", text("main h2"), "Key alice")
	b.Wait("its title", `document.title === "Key alice – pglimit dashboard"`)
	b.Click(`nav a[data-page="keys"]`)
	b.Eventually("the heading", text("main h2"), "Keys")
	b.Wait("it has the focus", `document.activeElement === $("main h2")`)
	b.Wait("the link is current", `$("nav a[aria-current=page]").textContent === "Keys"`)
	b.Wait("the table", `$$("main tbody tr").length === 100`)
	b.Run("scroll", `scrollTo(0, 1200)`)
	b.Wait("the place is noted", `history.state?.y === 1200`)
	b.Run("a link in the table", `$$("main tbody a[href^='#/key/']")[30].click()`)
	b.Wait("a key's page, from its top", `$("main h2").textContent.startsWith("Key ") && scrollY === 0`)
	b.Run("back", `history.back()`)
	b.Eventually("the heading", text("main h2"), "Keys")
	b.Eventually("the place", `scrollY`, 1200)
	b.Run("back", `history.back()`)
	b.Eventually("the first page", text("main h2"), "Key alice")
	b.Run("forward", `history.forward()`)
	b.Eventually("forward", text("main h2"), "Keys")
	b.Type("[name=policy]", "login")
	b.Wait("the filter is in the address", `location.hash === "#/keys?policy=login"`)
	b.Wait("and in the table", `$$("main tbody tr").length > 5 && $$("main tbody tr").every(r => r.children[1].textContent.includes("login"))`)
	b.Type("[name=prefix]", "192.0.2.1")
	b.Wait("a prefix is not readable in the address", `location.hash.includes("prefix=") && !location.hash.includes("192")`)
	b.Wait("it filters", `$$("main tbody tr").length === 10`)
	b.Do("load the address again", chromedp.Reload())
	b.complete()
	b.Wait("the filters are there", `$("[name=prefix]").value === "192.0.2.1" && $("[name=policy]").value === "login" && $$("main tbody tr").length === 10`)
	b.Tolerate("status of 400")
	b.Type("[name=policy]", "No Such")
	b.Wait("a bad filter is refused with a message", `$("main .problem").textContent.includes("No Such")`)
}

// TestDashboardHostileKeys: keys are text, whatever they are, on every page.
func TestDashboardHostileKeys(t *testing.T) {
	t.Parallel()
	o := operate(t, seldom)
	b := o.change(t, "#/keys")
	const shown = `(e => [...e.childNodes].map(n => n.nodeType === Node.TEXT_NODE ? n.data : String.fromCodePoint(parseInt(n.textContent.slice(2), 16))).join(""))`
	have := Read[[]string](b, `$$("main tbody .key").map(`+shown+`)`)
	for _, key := range sample.Hostile {
		found := false
		for _, is := range have {
			found = found || is == key
		}
		if !found {
			t.Errorf("the table has no %q", key)
		}
	}
	for i, key := range sample.Hostile[:3] {
		b.visit("#/keys")
		b.Run(fmt.Sprintf("the link of hostile key %d", i), fmt.Sprintf(`$$("main tbody a[href^='#/key/']").find(a => %s(a.querySelector(".key")) === %s).click()`, shown, js(key)))
		b.Wait("its page", `$("main h2 .key") && $$("main .limit").length > 0`)
		if is := Read[string](b, shown+`($("main h2 .key"))`); is != key {
			t.Errorf("the heading of %q is %q", key, is)
		}
		b.Run("block it", `$("[data-do=block][data-policy]").click(); $("#ask-yes").click()`)
		b.Wait("it is blocked", `$("main .tag.bad") && !$("#ask").open`)
		b.Run("open it by its name", fmt.Sprintf(`location.hash = "#/"; $("#find-key").value = %s; $("#find").requestSubmit()`, js(key)))
		b.Wait("its page is there", fmt.Sprintf(`location.hash.startsWith("#/find/") && $("main h2 .key") && %s($("main h2 .key")) === %s && $("main .tag.bad")`, shown, js(key)))
	}
	for _, page := range append(dashboardPages, keyPage(sample.Hostile[1]), keyPage(sample.Hostile[3])) {
		b.visit(page)
		if bad := Read[int](b, `$$("main img, main script, main iframe, main [onerror]").length`); bad != 0 || Read[bool](b, `document.title.includes("hit") && !document.title.includes("<")`) {
			t.Errorf("%s: markup of a key became elements", page)
		}
		if hidden := Read[[]string](b, `$$("main .key, main .text, title").map(e => e.textContent).filter(text => /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u.test(text))`); len(hidden) > 0 {
			t.Errorf("%s: characters that change others or are not visible are left in %q", page, hidden)
		}
	}
}

// js is a string in JavaScript.
func js(text string) string {
	var b strings.Builder
	for _, r := range text {
		fmt.Fprintf(&b, `\u{%x}`, r)
	}
	return `"` + b.String() + `"`
}
