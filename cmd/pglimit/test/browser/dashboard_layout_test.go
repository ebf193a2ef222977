package browser

import (
	"fmt"
	"slices"
	"testing"
)

// TestDashboardLooks: on every page everything fits, text has contrast, and what a screen
// reader says has a name. With forced colours text is visible, and for users who prefer that
// nothing moves by itself.
func TestDashboardLooks(t *testing.T) {
	t.Parallel()
	o := operate(t, seldom)
	b := o.change(t, "#/")
	b.Tolerate("status of 503") // of a request in flight when the server stops
	b.Tolerate("ERR_")
	for _, page := range dashboardPages {
		b.visit(page)
		b.Run("open what is closed", `for (const d of $$("details")) d.open = true`)
		seen := b.named()
		if len(seen["main"]) != 1 || len(seen["navigation"]) != 1 || len(seen["heading"]) < 3 || len(seen["alert"]) < 1 || len(seen["status"]) < 1 {
			t.Errorf("%s: roles %v", page, seen)
		}
		b.legible(15)
		b.fits(page, tooWide, 320, 800, 1600)
		b.resize(390)
		if low := Read[[]string](b, `$$("main a, nav a").filter(e => e.checkVisibility() && e.getBoundingClientRect().height < 24).map(e => e.textContent)`); len(low) > 0 {
			t.Errorf("%s: links that are too low for a finger: %q", page, low)
		}
	}
	b.visit("#/")
	if height := Read[float64](b, `$("section[aria-label='Most limited keys']").getBoundingClientRect().height`); height > 1100 {
		t.Errorf("ten keys are %v pixels high on a phone", height)
	}
	b.resize(320) // where tables are blocks
	b.visit("#/keys")
	if seen := b.named(); len(seen["table"]) != 1 || len(seen["row"]) < 101 || len(seen["cell"]) < 500 || len(seen["columnheader"]) != 7 {
		t.Errorf("the roles of a narrow table: %v", seen)
	}
	b.visit(keyPage("203.0.113.99"))
	b.Click("[data-do=block]")
	b.Wait("the dialog, which names the key", `$("#ask").open && $("#ask-title").textContent === "Block 203.0.113.99?"`)
	b.fits("the dialog", tooWide, 320, 800)
	b.Click("#ask-no")

	o.Stop()
	b.Run("refresh", `document.dispatchEvent(new Event("visibilitychange"))`)
	b.Wait("the banner", `$("#banner").clientHeight > 0`)
	b.legible(15)
	b.Media("forced-colors", "active")
	const canvas = `getComputedStyle(document.documentElement).backgroundColor`
	if unseen := Read[[]string](b, `$$("body *").filter(e => e.checkVisibility() && !e.closest("#banner") && e.childElementCount === 0 && e.textContent.trim() && getComputedStyle(e).color === `+canvas+`).map(e => e.localName + "." + e.className)`); len(unseen) > 0 {
		t.Errorf("with forced colours this is not visible: %q", unseen)
	}
	b.still()
}

// tooWide is the expression of what is cut off, or wider than a panel or the dialog.
const tooWide = `[
	...$$("main button, main a, main td, main th, main dd, main li, main p, .tag, .key").filter(e => e.checkVisibility() && !e.closest(".scroll, thead")).filter(e => {
		const box = e.getBoundingClientRect(), around = (e.closest(".panel") ?? document.body).getBoundingClientRect()
		return box.width > 0 && (box.left < around.left - 1 || box.right > around.right + 1) || e.matches("button") && e.scrollWidth > e.clientWidth + 1
	}).map(e => e.localName + " " + e.className + " " + e.textContent.slice(0, 30)),
	...$$("dialog[open]").filter(d => (r => r.left < 0 || r.right > innerWidth || d.scrollWidth > d.clientWidth)(d.getBoundingClientRect())).map(() => "the dialog"),
]`

// TestDashboardNoShift: updates with other numbers move nothing, and pages have the header in
// the same place.
func TestDashboardNoShift(t *testing.T) {
	t.Parallel()
	o := operate(t, often)
	b := o.view(t, keyPage("203.0.113.99"))
	b.lookForShifts()
	b.Run("count requests", unanswered)
	for _, width := range []int64{320, 1600} {
		b.resize(width)
		var header []string
		for _, page := range []string{keyPage("203.0.113.99"), "#/policies"} {
			b.visit(page)
			b.Run("the page is drawn, in its place", `await drawn(); shifts.length = requests = 0`)
			const boxes = `$$("header h1, nav a, #find, main h2, .panel, h3, table").map(e => { const r = e.getBoundingClientRect(); return [e.localName, e.className, r.x + scrollX, r.y + scrollY, r.width].join(" ") })`
			before := Read[[]string](b, boxes)
			if header == nil {
				header = before[:6]
			} else if !slices.Equal(header, before[:6]) {
				t.Errorf("at %d px, %s has the header at %q, and the page before at %q", width, page, before[:6], header)
			}
			o.source.Turn()
			b.Wait("several updates", `requests > 6`)
			b.Run("they are drawn", `await drawn()`)
			b.moved(fmt.Sprintf("at %d px, %s", width, page), boxes, before)
		}
	}
}
