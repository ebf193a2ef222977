package browser

import (
	"regexp"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/pglimit/pglimit/limiter"
)

// TestForcedColours: if the system replaces the page's colours, the outcomes are still
// distinguishable, and all text and the focus are visible.
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
		// The page's colour is behind text, whatever its element's background.
		"text": `$$("body *").filter(e => e.checkVisibility() && getComputedStyle(e).color === ` + canvas + `).map(e => e.localName + "." + e.className)`,
		"the focus": `$$("a, button, input, select, summary, pre").filter(e => e.checkVisibility() && !e.disabled).filter(e => {
			e.focus({focusVisible: true})
			const style = getComputedStyle(e)
			return style.outlineStyle === "none" || style.outlineColor === ` + canvas + `
		}).map(e => e.localName + "." + e.className)`,
	} {
		if n := Read[[]string](b, unseen); len(n) > 0 {
			t.Errorf("%s is not visible of %q", what, n)
		}
	}
}

// TestPrint: on paper the report is dark on white, and complete.
func TestPrint(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), everyCard("alice", "limit=5", "period=1m"))
	b.choose(file(t, "access.log", accessLog()))
	b.Wait("the report is there", shownReport)
	report := Open(t, chromium, Read[string](b, `$("#report-open").href`))
	if _, err := chromedp.Call(report.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Media: "print", Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}},
	}); err != nil {
		t.Fatal(err)
	}
	report.Do("as wide as a sheet", chromedp.EmulateViewport(720, 1000))
	report.Wait("it is so", `matchMedia("print").matches && innerWidth === 720`)
	if is := Read[float64](report, contrasts+".back"); is != 1 {
		t.Errorf("the paper's luminance is %v", is)
	}
	for _, f := range Read[[]string](report, contrasts+".failing") {
		t.Error(f)
	}
	if n := Read[[]string](report, `$$("body *:not(svg, svg *, .unseen, .unseen *)").filter(e => e.checkVisibility() && (getComputedStyle(e).overflowX !== "visible"
		|| e.getBoundingClientRect().right > innerWidth)).map(e => e.localName + "." + e.className)`); len(n) > 0 {
		t.Errorf("paper does not scroll, and would not show all of %q", n)
	}
	if Read[bool](report, `$$("summary").some(e => e.checkVisibility())`) {
		t.Error("the details are closed on paper")
	}
	pdf := Do(report, "print", chromedp.PrintToPDF())
	if pages := len(regexp.MustCompile(`/Type\s*/Page\b`).FindAll(pdf, -1)); pages < 1 || pages > 3 || len(pdf) < 10<<10 || len(pdf) > 1<<20 {
		t.Errorf("%d pages in %d bytes", pages, len(pdf))
	}
}
