package browser

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/policies"
)

// TestDashboardSearch: the keys that begin with what is typed are links, after the last
// letter only, and go away with the focus.
func TestDashboardSearch(t *testing.T) {
	t.Parallel()
	o := operate(t, seldom)
	b := Open(t, chromium, o.URL, first(`
		AbortSignal.timeout = () => null
		const set = setTimeout, clear = clearTimeout
		window.setTimeout = (f, ms, ...a) => ms === 150 ? (window.pause = f, -1) : set(f, ms, ...a)
		window.clearTimeout = id => id === -1 ? delete window.pause : clear(id)`))
	b.complete()
	ends := func() {
		t.Helper()
		b.Wait("the search waits for a pause", `window.pause`)
		b.Run("the pause", `const f = pause; delete window.pause; f()`)
	}
	b.Run("focus", `$("#find-key").focus()`)
	b.Key("type", "192.0.2.1")
	b.Wait("it is typed", `$("#find-key").value === "192.0.2.1"`)
	ends()
	b.Wait("the keys", `$$("#found a").length === 10 && $$("#found a")[3].textContent === "192.0.2.13"`)
	b.Eventually("what a screen reader hears", text("#said"), "10 keys begin so.")
	if n := o.source.Calls("Search"); n != 1 {
		t.Errorf("%d searches for 9 letters", n)
	}
	b.Run("delete a letter", `$("#find-key").value = "192.0.2."; $("#find-key").dispatchEvent(new Event("input", {bubbles: true}))`)
	ends()
	b.Wait("more than ten", `$$("#found a").length === 10 && $("#found").textContent.includes("and more")`)
	b.Key("down and up", kb.ArrowDown+kb.ArrowDown+kb.ArrowDown+kb.ArrowUp)
	b.Wait("the second has the focus", `document.activeElement === $$("#found a")[1]`)
	b.Key("Escape", kb.Escape)
	b.Wait("the list is closed", `$$("#found li").length === 0 && document.activeElement.id === "find-key"`)
	b.Run("a key that is markup", `$("#find-key").value = "<img"; $("#find-key").dispatchEvent(new Event("input", {bubbles: true}))`)
	ends()
	b.Wait("is text", `$$("#found a").length === 1 && $$("#found img").length === 0 && $("#found").textContent.includes("onerror")`)
	b.Run("open it", `$("#found a").click()`)
	b.Wait("its page", `$("main h2").textContent.includes("onerror") && $$("#found li").length === 0`)
	b.Run("focus and leave", `$("#find-key").focus(); $("#find-key").dispatchEvent(new Event("input", {bubbles: true}))`)
	ends()
	b.Wait("the list", `$$("#found a").length === 1`)
	b.Run("leave", `$("nav a").focus()`)
	b.Wait("it is closed", `$$("#found li").length === 0`)
	b.Run("type, and leave before the answer", `$("#find-key").focus(); $("#find-key").dispatchEvent(new Event("input", {bubbles: true})); $("nav a").focus()`)
	b.Wait("nothing is searched", `!window.pause && $$("#found li").length === 0`)
}

// TestDashboardEdit: a policy and overrides are changed after a look at the difference, and a
// change of others meanwhile is told.
func TestDashboardEdit(t *testing.T) {
	t.Parallel()
	o := operate(t, often)
	b := o.change(t, "#/policies/login")
	b.Tolerate("status of 400")
	b.Tolerate("status of 409")
	fill := func(values ...string) {
		t.Helper()
		for i := 0; i < len(values); i += 2 {
			b.Run(values[i], fmt.Sprintf(`const e = $("#ask [name=%s]"); if (e.type === "checkbox") e.checked = %[2]q === "on"; else e.value = %[2]q; e.dispatchEvent(new Event("input", {bubbles: true}))`, values[i], values[i+1]))
		}
	}
	review := func(wants ...string) {
		t.Helper()
		b.Eventually("the button", text("#ask-yes"), "Show the difference")
		b.Click("#ask-yes")
		for _, want := range wants {
			b.Wait("the difference has "+want, fmt.Sprintf(`$("#ask-review").textContent.replace(/\s+/g, " ").includes(%q)`, want))
		}
	}
	has := func(what string) {
		t.Helper()
		b.Wait("saved: "+what, fmt.Sprintf(`!$("#ask").open && $("main").textContent.replace(/\s+/g, " ").includes(%q)`, what))
	}
	b.Click(`[data-do="edit policy"]`)
	review("This changes nothing.")
	fill("limit", "many")
	review()
	b.Wait("a mistake", text("#ask-problem")+`.includes("limit is a JSON string: must be a number")`)
	fill("limit", "3", "shadow", "on", "note", "try <b>this</b>")
	review("before 5 → after 3", "shadow: after true", "it would have denied: 0, because a shadow policy denies nothing", "Counted since", "keys are above the burst of 10")
	if n := o.source.Calls("Apply"); n != 0 {
		t.Errorf("%d changes before the look at the difference", n)
	}
	fill("shadow", "off")
	b.Wait("another value needs another look", `$("#ask-review").textContent === ""`)
	review("this cannot be known, because requests that passed are not counted")
	b.Eventually("the button", text("#ask-yes"), "Save")
	b.Click("#ask-yes")
	has("3 per 1m, burst 10")
	has("try <b>this</b>")
	has("blocks for 15m")

	b.Click(`[data-do="edit override"]:not([data-key])`)
	fill("key", "mallory", "limit", "10x", "note", "trial")
	review("factor: after 10")
	o.source.Touch()
	b.Click("#ask-yes")
	b.Wait("others made a change", text("#ask-problem")+`.includes("changed meanwhile")`)
	review("factor: after 10")
	b.Click("#ask-yes")
	has("limit 10x")
	b.Click(`[data-do="edit override"][data-key="mallory"]`)
	b.Wait("its values", `$("#ask [name=limit]").value === "10x" && $("#ask [name=note]").value === "trial" && $("#ask-title").textContent.includes("mallory")`)
	fill("limit", "", "state", "blocked")
	review("blocked: after true", "factor: before 10", "all requests would be denied")
	b.Click("#ask-yes")
	has("blocked")
	b.Click(`[data-do="delete override"][data-key="mallory"]`)
	fill("note", "over")
	review("blocked: before true")
	b.Click("#ask-yes")
	b.Wait("it is gone", `!$("#ask").open && !$("[data-key=mallory]")`)

	b.visit(keyPage("alice"))
	b.Click(`[data-do="edit override"][data-policy="login"]`)
	b.Wait("the dialog names the key", `$("#ask-title").textContent.includes("alice") && $("#ask").textContent.includes("under login")`)
	fill("limit", "50")
	review("limit: after 50", "1 keys are above")
	b.Click("#ask-yes")
	has("50 per 1m")
	has("by an override")
	must.OK(o.source.Apply(t.Context(), dashboard.Edit{Override: &policies.Override{Policy: "login", Key: "al", Match: policies.MatchPrefix, Blocked: true}}))(t)
	has("blocked, no end")
	has("Blocked by an override for keys by prefix al")
	has("keys by prefix, blocked")
	b.Click(`[data-policy="login"][data-match="prefix"][data-algorithm]`)
	review("blocked: before true")
	b.Click("#ask-yes")
	b.Wait("it is lifted", `!$("#ask").open && !$("main").textContent.includes("blocked, no end") && $("[data-do=unblock][data-policy=login]")`)

	b.visit("#/policies")
	b.Click(`[data-do="edit policy"]`)
	fill("name", "fresh", "algorithm", "gcra", "limit", "7", "period", "1h")
	review("algorithm: after gcra", "no such policy")
	b.fits("the dialog", tooWide, 320, 800)
	b.Click("#ask-yes")
	has("7 per 1h")
	b.visit("#/policies/fresh")
	b.Click(`[data-do="delete policy"]`)
	review("limit: before 7")
	b.Click("#ask-yes")
	has("The database has no policy of this name")
}
