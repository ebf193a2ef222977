package browser

import (
	"testing"

	"github.com/pglimit/pglimit/limiter"
)

// TestForcedColours: where the system takes a page's colours away, the outcomes are
// told apart all the same, and all text and the focus are to be seen.
func TestForcedColours(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), five("alice"))
	b.Media("forced-colors", "active")
	a := limiter.LeakyBucketQueue // which delays, too
	b.Do("scroll to the plot", scrollTo(card(a, "canvas")))
	b.Run("a burst", `$("#card-leaky_bucket_queue .burst-10").click()`)
	b.Eventually("allowed, delayed, denied", counts(a), burstOfTen(a))
	for _, outcome := range []string{"allowed", "delayed", "denied"} {
		b.Wait("its mark is in the plot: "+outcome, hasColour(a, outcome))
	}
	const canvas = `getComputedStyle(document.documentElement).backgroundColor`
	if n := Read[int](b, `new Set([`+canvas+`, ...$$("#card-leaky_bucket_queue .mark").map(e => getComputedStyle(e).backgroundColor)]).size`); n != 4 {
		t.Errorf("the page and the three marks have %d colours", n)
	}
	for what, unseen := range map[string]string{
		"the status": `[getComputedStyle($("#status"), "::before").backgroundColor].filter(c => c === ` + canvas + ` || c.endsWith(", 0)"))`,
		// The page's colour is behind text, whatever its element has.
		"text": `$$("body *").filter(e => e.checkVisibility() && getComputedStyle(e).color === ` + canvas + `).map(e => e.localName + "." + e.className)`,
		"the focus": `$$("a, button, input, select, summary, pre").filter(e => e.checkVisibility() && !e.disabled).filter(e => {
			e.focus({focusVisible: true})
			const style = getComputedStyle(e)
			return style.outlineStyle === "none" || style.outlineColor === ` + canvas + `
		}).map(e => e.localName + "." + e.className)`,
	} {
		if n := Read[[]string](b, unseen); len(n) > 0 {
			t.Errorf("nobody sees %s of %q", what, n)
		}
	}
}
