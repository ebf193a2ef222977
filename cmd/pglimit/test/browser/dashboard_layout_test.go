package browser

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
)

// TestDashboardNarrowAndWide: everything fits, on every page, and so does the dialog.
func TestDashboardNarrowAndWide(t *testing.T) {
	t.Parallel()
	b := operate(t, seldom).change(t, "#/")
	fits := func(page string) {
		t.Helper()
		resize := func(width int64) {
			b.Do(fmt.Sprintf("a window of %d px", width), chromedp.EmulateViewport(width, 800))
			b.Eventually("its width", `innerWidth`, width)
			b.Run("it is drawn", `await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))`) // the chart after the page
			for _, what := range Read[[]string](b, tooWide) {
				t.Errorf("at %d px on %s this does not fit: %s", width, page, what)
			}
		}
		for _, width := range []int64{320, 640, 800, 1000, 1600} {
			resize(width)
		}
		b.Run("space the text", spaced)
		resize(320)
		b.Run("as it was", `document.adoptedStyleSheets = []`)
	}
	for _, page := range dashboardPages {
		b.visit(page)
		b.Run("open what is closed", `for (const d of $$("details")) d.open = true`)
		fits(page)
	}
	b.visit(keyPage("203.0.113.99"))
	b.Click("[data-do=block]")
	b.Wait("the dialog", `$("#ask").open`)
	fits("a dialog")
}

// tooWide is the expression of what is cut off, or wider than the window, a panel or the dialog.
const tooWide = `[
	...document.scrollingElement.scrollWidth <= innerWidth ? [] : ["the page, by " + $$("body *")
		.filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest(".scroll, pre")).map(e => e.localName + "." + e.className).join(", ")],
	...$$("main button, main a, main td, main th, main dd, main li, main p, .tag, .key").filter(e => e.checkVisibility() && !e.closest(".scroll, thead")).filter(e => {
		const box = e.getBoundingClientRect(), around = (e.closest(".panel") ?? document.body).getBoundingClientRect()
		return box.width > 0 && (box.left < around.left - 1 || box.right > around.right + 1) || e.matches("button") && e.scrollWidth > e.clientWidth + 1
	}).map(e => e.localName + " " + e.className + " " + e.textContent.slice(0, 30)),
	...$$("dialog[open]").filter(d => (r => r.left < 0 || r.right > innerWidth || d.scrollWidth > d.clientWidth)(d.getBoundingClientRect())).map(() => "the dialog"),
]`

// TestDashboardPreferences measures the contrast of text on every page, light and dark. With
// forced colours text is visible, and for users who prefer that nothing moves by itself.
func TestDashboardPreferences(t *testing.T) {
	t.Parallel()
	o := operate(t, seldom)
	b := o.change(t, "#/")
	b.Tolerate("ERR_")
	for _, page := range dashboardPages {
		b.visit(page)
		for _, scheme := range []string{"light", "dark"} {
			b.Media("prefers-color-scheme", scheme)
			seen := Read[struct {
				Back    float64
				Texts   int
				Least   float64
				Failing []string
			}](b, contrasts)
			if seen.Texts < 15 || scheme == "light" && seen.Back < 0.7 || scheme == "dark" && seen.Back > 0.1 {
				t.Errorf("%s, %s: %+v", scheme, page, seen)
			}
			for _, f := range seen.Failing {
				t.Errorf("%s, %s: %s", scheme, page, f)
			}
		}
	}
	o.Stop()
	b.Run("refresh", `document.dispatchEvent(new Event("visibilitychange"))`)
	b.Wait("the banner", `$("#banner").clientHeight > 0`)
	for _, scheme := range []string{"light", "dark"} {
		b.Media("prefers-color-scheme", scheme)
		for _, f := range Read[[]string](b, contrasts+".failing") {
			t.Errorf("%s, with the banner: %s", scheme, f)
		}
	}
	b.Media("forced-colors", "active")
	const canvas = `getComputedStyle(document.documentElement).backgroundColor`
	if unseen := Read[[]string](b, `$$("body *").filter(e => e.checkVisibility() && !e.closest("#banner") && e.childElementCount === 0 && e.textContent.trim() && getComputedStyle(e).color === `+canvas+`).map(e => e.localName + "." + e.className)`); len(unseen) > 0 {
		t.Errorf("with forced colours this is not visible: %q", unseen)
	}
	b.Media("prefers-reduced-motion", "reduce")
	b.Eventually("animations and transitions, once those under way have ended", `document.getAnimations().length + $$("*").filter(e => getComputedStyle(e).transitionDuration.split(", ").some(d => d !== "0s")).length`, 0)
}

// lookForShifts makes the page keep the shifts that the browser sees in shifts. drawn waits
// for the next frame, whose shifts are there then.
func (b *Tab) lookForShifts() {
	b.Helper()
	b.Run("look for shifts", `
		const note = entries => shifts.push(...entries.map(e => e.value + " of " + e.sources.map(s => s.node?.parentElement?.className + ">" + s.node?.nodeName + "." + s.node?.className)))
		const observer = new PerformanceObserver(list => note(list.getEntries()))
		window.shifts = []
		window.drawn = async () => {
			await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))
			note(observer.takeRecords())
		}
		observer.observe({type: "layout-shift"})`)
}

// TestDashboardNoShift: updates with other numbers move nothing, and pages have the header in
// the same place.
func TestDashboardNoShift(t *testing.T) {
	t.Parallel()
	o := operate(t, often)
	b := o.view(t, keyPage("203.0.113.99"))
	b.lookForShifts()
	b.Run("count requests", `window.requests = 0; const fetched = fetch; window.fetch = (...a) => { requests++; return fetched(...a) }`)
	for _, width := range widths {
		b.Do(fmt.Sprintf("a window of %d px", width), chromedp.EmulateViewport(width, 900))
		b.Eventually("its width", `innerWidth`, width)
		var header []string
		for _, page := range []string{keyPage("203.0.113.99"), "#/policies", "#/policies/login"} {
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
			after := Read[[]string](b, boxes)
			for i := range before {
				if i >= len(after) || before[i] != after[i] {
					t.Errorf("at %d px, %s: this moved, and maybe more: %s", width, page, before[i])
					break
				}
			}
			if shifts := Read[[]string](b, "shifts"); len(shifts) > 0 {
				t.Errorf("at %d px, %s: the browser saw shifts: %s", width, page, strings.Join(shifts, "; "))
			}
		}
	}
}

// TestDashboardNames reads the pages as a screen reader does.
func TestDashboardNames(t *testing.T) {
	t.Parallel()
	b := operate(t, seldom).change(t, "#/")
	for _, page := range dashboardPages {
		b.visit(page)
		tree, err := chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
		if err != nil {
			t.Fatal(err)
		}
		value := func(v *accessibility.Value) (s string) {
			if v != nil {
				_ = json.Unmarshal(v.Value, &s) // anything else has no name
			}
			return s
		}
		seen := map[string]int{}
		for _, node := range tree.Nodes {
			if node.Ignored {
				continue
			}
			role := value(node.Role)
			seen[role]++
			switch role {
			case "button", "textbox", "searchbox", "combobox", "link", "image", "img", "heading", "region", "table", "navigation", "search", "DisclosureTriangle", "columnheader":
				if strings.TrimSpace(value(node.Name)) == "" {
					t.Errorf("%s: a %s has no name", page, role)
				}
			}
		}
		if seen["main"] != 1 || seen["navigation"] != 1 || seen["heading"] < 3 || seen["alert"] < 1 || seen["status"] < 1 {
			t.Errorf("%s: roles %v", page, seen)
		}
		if again := Read[[]string](b, `$$("[id]").map(e => e.id).filter((id, i, all) => all.indexOf(id) !== i)`); len(again) > 0 {
			t.Errorf("%s: more than one element has the id of %q", page, again)
		}
		if jumps := Read[[]string](b, `$$("h1, h2, h3, h4").filter(e => e.checkVisibility())
			.filter((e, i, all) => i ? e.localName === "h1" || e.localName[1] > +all[i-1].localName[1] + 1 : e.localName !== "h1").map(e => e.textContent)`); len(jumps) > 0 {
			t.Errorf("%s: no level leads to the headings %q", page, jumps)
		}
	}
	// On a narrow screen the tables are blocks, and still tables.
	b.Do("a narrow window", chromedp.EmulateViewport(320, 800))
	b.visit("#/keys")
	tree, err := chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		t.Fatal(err)
	}
	roles := map[string]int{}
	for _, node := range tree.Nodes {
		var role string
		if node.Role != nil && json.Unmarshal(node.Role.Value, &role) == nil && !node.Ignored {
			roles[role]++
		}
	}
	if roles["table"] != 1 || roles["row"] < 101 || roles["cell"] < 500 || roles["columnheader"] != 7 {
		t.Errorf("the roles of a narrow table: %v", roles)
	}
}
