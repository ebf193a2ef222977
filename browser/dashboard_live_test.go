package browser

import (
	"errors"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestDashboardLive: updates keep the focus, the selection, open details, what is typed and
// the place, even when rows change their order.
func TestDashboardLive(t *testing.T) {
	t.Parallel()
	o := operate(t, often)
	b := o.view(t, "#/keys?policy=login") // all rows stay, in another order
	next := func() {
		t.Helper()
		b.Run("what is there", `window.before = $("main tbody").textContent`)
		o.source.Turn()
		b.Wait("the next data", `$("main tbody").textContent !== before`)
	}
	const order = `$$("main tbody tr").map(r => r.dataset.id)`
	first := Read[[]string](b, order)
	b.Run("focus a link far down", `scrollTo(0, 1000); window.link = $$("main tbody tr")[20].querySelector("a"); link.focus({preventScroll: true})`)
	for range 3 {
		next()
		if !Read[bool](b, `document.activeElement === link && link.isConnected`) {
			t.Fatal("the focus is lost")
		}
	}
	if then := Read[[]string](b, order); fmt.Sprint(then) == fmt.Sprint(first) {
		t.Error("the order did not change, so the test shows nothing")
	}
	b.Run("select text", `const key = $$("main tbody .key").filter(k => k.textContent.startsWith("192"))[12]; window.selected = key.textContent; getSelection().selectAllChildren(key); document.activeElement.blur()`)
	next()
	b.Wait("it is selected", `getSelection().toString() === selected`)
	b.Run("type", `$("[name=prefix]").focus(); $("[name=prefix]").value = "k"; window.field = document.activeElement`)
	next()
	b.Wait("the field has its text and the focus", `document.activeElement === field && field.value === "k"`)

	b.visit("#/")
	b.Click("summary")
	b.Run("scroll", `scrollTo(0, 500); window.y = scrollY`)
	next()
	next()
	b.Wait("the details are open, and the place is kept", `$("details").open && scrollY === y`)
	b.visit("#/keys?policy=login")
	b.Run("hold the next request", `window.fetched ??= fetch; window.requests = 0; const gate = new Promise(open => window.goOn = open)
		window.fetch = (...a) => { requests++; return gate.then(() => fetched(...a)) }`)
	b.Eventually("requests in flight", `requests`, 1)
	b.Run("hide the page", `Object.defineProperty(document, "hidden", {get: () => true, configurable: true}); document.dispatchEvent(new Event("visibilitychange"))`)
	b.Run("a while", `goOn(); for (let i = 0; i < 50; i++) await fetched("/api/setup")`)
	b.Eventually("requests of a hidden page", `requests`, 1)
	b.Run("a visible one", `delete document.hidden; document.dispatchEvent(new Event("visibilitychange"))`)
	b.Wait("goes on", `requests > 4`)
}

// TestDashboardAway: while the database or the server does not answer, a banner says so, and
// the last data stay; then it goes.
func TestDashboardAway(t *testing.T) {
	t.Parallel()
	o := operate(t, often)
	b := o.view(t, "#/keys")
	b.Tolerate("status of 503")
	b.Tolerate("ERR_")
	b.Wait("no banner", `$("#banner").textContent === "" && $("#banner").clientHeight === 0`)
	away := func(what, want string) {
		t.Helper()
		b.Wait(what, text("#banner")+fmt.Sprintf(`.includes(%q) && $("#banner").clientHeight > 0 && $("#status").dataset.state === "lost"`, want))
		b.Wait("since when the data are", text("#banner")+`.match(/The data are those of \d\d:\d\d:\d\d/)`)
		b.Wait("the data stay", `$$("main tbody tr").length === 100`)
	}
	back := func() {
		t.Helper()
		b.Wait("the banner goes", `$("#banner").textContent === "" && $("#status").dataset.state === "connected"`)
	}
	o.source.Break(errors.New("pglimit: database unavailable: dial tcp: connection refused"))
	away("the database is away", "The database does not answer: database unavailable: dial tcp: connection refused.")
	b.Run("count what a screen reader hears", `window.requests = 0; window.fetched ??= fetch; window.fetch = (...a) => { requests++; return fetched(...a) }
		window.heard = 0; new MutationObserver(() => heard++).observe($("#banner"), {childList: true, characterData: true, subtree: true})`)
	b.Wait("the page tries again", `requests > 8`)
	b.Eventually("times that the banner is said again", `heard`, 0)
	o.source.Break(nil)
	back()
	o.Stop()
	away("the server is away", "Start it again with: pglimit dashboard")
	b.Run("another page meanwhile", `location.hash = "#/doctor"`)
	b.Wait("the banner is still there", `$("#banner").textContent`)
	o.Again()
	back()
	b.Wait("and the page", `$("main .list li")`)

	o.source.Break(errors.New("down"))
	late := Open(t, chromium, o.URL)
	late.Tolerate("status of 503")
	late.Wait("opened while the database is away", text("#banner")+`.includes("There are no data yet.")`)
	o.source.Break(nil)
	late.complete()
}

// TestDashboardChangeFails: a change that fails is told, and nothing pretends that it was
// made.
func TestDashboardChangeFails(t *testing.T) {
	t.Parallel()
	o := operate(t, seldom)
	b := o.change(t, keyPage("203.0.113.99"))
	b.Tolerate("status of 503")
	b.Wait("blocked", `$("main .tag.bad")`)
	o.source.Break(errors.New("it broke"))
	b.Click("[data-do=reset]")
	b.Click("#ask-yes")
	b.Wait("the dialog says so, and stays", text("#ask-problem")+`.includes("it broke") && $("#ask").open`)
	b.Click("#ask-no")
	b.Click("[data-do=unblock]")
	b.Wait("so does the banner", text("#banner")+`.includes("it broke")`)
	b.Wait("still blocked", `$("main .tag.bad")`)
	o.source.Break(nil)
	b.Do("load again", chromedp.Reload())
	b.complete()
	b.Click("[data-do=unblock]")
	b.Wait("unblocked", `!$("main .tag.bad")`)
}
