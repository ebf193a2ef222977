package browser

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pglimit/pglimit/limiter"
)

// testKeyboard moves through the page by Tab and operates it.
func testKeyboard(t *testing.T, p *Playground) {
	b := open(t, p, five(t.Name()))

	const name = `(e => (e.closest("article")?.id ?? "page") + " " + (e.name || e.id || e.className || e.localName))`
	// In document order, which is reading order; nothing sets another.
	const stops = `$$("a[href], button, input, select, summary, [tabindex='0']")
		.filter(e => e.checkVisibility({visibilityProperty: true}) && !e.disabled)`
	want := Read[[]string](b, stops+`.map(`+name+`)`)
	if positive := Read[int](b, `$$("[tabindex]").filter(e => e.tabIndex > 0).length`); positive != 0 {
		t.Errorf("%d elements have a positive tabindex", positive)
	}
	var seen []string
	for range want {
		b.press(kb.Tab)
		at := Read[struct {
			Name, Outline, Under string
		}](b, `(e => {
			const box = e.getBoundingClientRect()
			const x = box.left + box.width / 2, y = box.top + box.height / 2
			const top = document.elementFromPoint(x, y)
			const inSight = top && (e.contains(top) || top.contains(e))
			const style = getComputedStyle(e)
			return {
				name: `+name+`(e),
				outline: style.outlineStyle + " " + style.outlineWidth,
				under: inSight ? "" : top ? top.localName + "." + top.className : "nothing",
			}
		})(document.activeElement)`)
		seen = append(seen, at.Name)
		if strings.HasPrefix(at.Outline, "none") || strings.HasSuffix(at.Outline, " 0px") {
			t.Errorf("%s has the focus, and nothing shows it: outline %s", at.Name, at.Outline)
		}
		if at.Under != "" {
			t.Errorf("%s has the focus, but lies under %s", at.Name, at.Under)
		}
	}
	if !slices.Equal(seen, want) {
		t.Errorf("in the document they are %s", strings.Join(want, ", "))
	}

	b.Run("count what is not answered yet", unanswered)
	a := limiter.TokenBucket
	focus := func(selector string) {
		b.Run("focus "+selector, fmt.Sprintf("$(%q).focus()", selector))
	}
	focus(card(a, ".send"))
	b.Key("Enter", kb.Enter)
	b.Eventually("allowed", counts(a), []int{1, 0, 0})
	b.Key("Space", " ")
	b.Eventually("allowed", counts(a), []int{2, 0, 0})
	b.Key("Tab, to Burst 10, and Enter", kb.Tab+kb.Enter)
	b.Eventually("the burst", counts(a), []int{5, 0, 7})
	focus("#traffic")
	b.Key("arrow down", kb.ArrowDown)
	b.Wait("the traffic comes", counts(a)+"[2] > 7")
	b.Key("arrow up", kb.ArrowUp)
	b.Eventually("all is answered", "unanswered", 0) // otherwise it would come after the reset
	b.quiet()
	focus(card(limiter.FixedWindow, ".policy summary"))
	b.Key("Enter", kb.Enter)
	focus(card(limiter.FixedWindow, "[name=aligned]"))
	b.Key("Space", " ")
	b.Wait("it is checked", fmt.Sprintf("$(%q).checked", card(limiter.FixedWindow, "[name=aligned]")))
	focus("#reset")
	b.Key("Enter", kb.Enter)
	b.Eventually("reset", counts(a), []int{0, 0, 0})
	for _, key := range []string{kb.Enter, " "} {
		focus(card(a, ".code summary"))
		b.Key("open the details", key)
		b.Wait("they are open", fmt.Sprintf("$(%q).open", card(a, "details.code")))
		b.Key("Tab, to the first in them", kb.Tab)
		b.Wait("it has the focus", `document.activeElement.matches("[data-copy=go]")`)
		focus(card(a, ".code summary"))
		b.Key("close them", key)
		b.Wait("they are closed", fmt.Sprintf("!$(%q).open", card(a, "details.code")))
	}
	focus("[name=candidate]:checked")
	b.Key("Space", " ")
	b.Eventually("one candidate less", `$$("[name=candidate]:checked").length`, 2)
	focus(".skip")
	b.Key("the skip link, and Tab", kb.Enter+kb.Tab)
	b.Wait("it is on the first card", `document.activeElement.closest("article") === $("article")`)
}

// openAll opens all details.
const openAll = `for (const e of $$("details")) e.open = true`

// press presses a key without a line in the log.
func (b *Tab) press(key string) {
	b.Helper()
	if err := chromedp.Do(b.ctx, chromedp.KeyEvent(key)); err != nil {
		b.fail("press a key", err)
	}
}

// named is the nodes of the page's accessibility tree that a screen reader names, by role.
func (b *Tab) named() map[string][]string {
	b.Helper()
	tree, err := chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		b.Fatalf("%v", err)
	}
	value := func(v *accessibility.Value) (s string) {
		if v != nil {
			_ = json.Unmarshal(v.Value, &s) // anything else has no name
		}
		return strings.TrimSpace(s)
	}
	seen := map[string][]string{}
	for _, node := range tree.Nodes {
		if node.Ignored {
			continue
		}
		role, name := value(node.Role), value(node.Name)
		seen[role] = append(seen[role], name)
		if name == "" && slices.Contains(mustHaveNames, role) {
			b.Errorf("a %s has no name", role)
		}
	}
	if again := Read[[]string](b, `$$("[id]").map(e => e.id).filter((id, i, all) => all.indexOf(id) !== i)`); len(again) > 0 {
		b.Errorf("more than one element has the id of %q", again)
	}
	if jumps := Read[[]string](b, `$$("h1, h2, h3, h4").filter(e => e.checkVisibility())
		.filter((e, i, all) => i ? e.localName === "h1" || e.localName[1] > +all[i-1].localName[1] + 1 : e.localName !== "h1").map(e => e.textContent)`); len(jumps) > 0 {
		b.Errorf("no level leads to the headings %q", jumps)
	}
	return seen
}

// mustHaveNames are the roles of which a screen reader says the name.
var mustHaveNames = []string{"button", "textbox", "searchbox", "spinbutton", "slider", "checkbox", "combobox", "link", "image", "img", "article", "Iframe",
	"DisclosureTriangle", "heading", "region", "table", "navigation", "search", "columnheader"}

// testNames reads the page as a screen reader does.
func testNames(t *testing.T, p *Playground) {
	b := open(t, p, five(t.Name()))
	b.Click("#burst-all")
	b.Eventually("the live region says it", text("#said"), "All: 31 allowed, 4 delayed, 35 denied.")
	b.Run("open all details", openAll)
	b.Wait("the plots have words", `$$("canvas").every(c => c.getAttribute("aria-label")?.includes("denied"))`)
	b.Wait("which are true", `$("#card-leaky_bucket_queue canvas").getAttribute("aria-label").endsWith(" of 5. In the last 30 seconds 1 allowed, 4 delayed, 5 denied.")`)
	seen := b.named()
	cards := len(limiter.Algorithms())
	for role, least := range map[string]int{
		"button": 4 + 2*cards, "slider": 1, "combobox": 2, "DisclosureTriangle": 3 * cards, "spinbutton": 2 * cards, "textbox": 1 + cards, "checkbox": 1 + cards, "article": cards, "status": 3, "alert": 1 + cards,
	} {
		if n := len(seen[role]); n < least {
			t.Errorf("there are %d of the role %s, not at least %d", n, role, least)
		}
	}
	if images := append(seen["image"], seen["img"]...); len(images) != cards {
		t.Errorf("%d plots are images, not %d", len(images), cards)
	}
	if articles := slices.Sorted(slices.Values(seen["article"])); len(slices.Compact(articles)) != cards {
		t.Errorf("the cards' names are not all different: %q", articles)
	}
}

// testQuiet observes the live regions while levels leak: a screen reader that read each
// level out would never end.
func testQuiet(t *testing.T, p *Playground) {
	b := open(t, p, everyCard(t.Name(), "limit=5", "period=2s"))
	b.Run("listen", `
		window.heard = []
		for (const e of $$("output, [role=status], [role=alert], [aria-live]")) {
			if (e.closest("[aria-live=off]")) continue
			new MutationObserver(() => heard.push(e.textContent)).observe(e, {childList: true, characterData: true, subtree: true})
		}`)
	b.Click("#burst-all")
	b.Wait("all have answered", answered)
	b.Eventually("levels", everywhere(".level"), each("0", "0"))
	b.Eventually("remaining", everywhere(".remaining"), each("5", "5"))
	b.Eventually("what was heard", `heard.map(text => text.replace(/\d+/g, "#"))`, []string{"All: # allowed, # delayed, # denied."})
}
