package browser

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pglimit/pglimit/limiter"
)

// widths of windows: 640 and 320 are what remains of 1280 at a zoom of 200 and 400 %.
var widths = []int64{320, 640, 1600}

func (b *Tab) resize(width int64) {
	b.Helper()
	b.Do(fmt.Sprintf("a window of %d px", width), chromedp.EmulateViewport(width, 900))
	b.Eventually("its width", `innerWidth`, width)
	b.Run("it is drawn", `await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))`)
}

// fits checks that nothing is cut off or wider than the window, at each width, and at the
// narrowest with the text spacing of WCAG 1.4.12. misfits is the expression of what is.
func (b *Tab) fits(what, misfits string, widths ...int64) {
	b.Helper()
	check := func(width int64, how string) {
		b.resize(width)
		for _, misfit := range Read[[]string](b, `[...(document.scrollingElement.scrollWidth <= innerWidth ? [] : ["the page, by " + $$("body *")
			.filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest(".scroll, pre")).map(e => e.localName + "." + e.className).join(", ")]), ...`+misfits+`]`) {
			b.Errorf("at %d px%s, of %s this does not fit: %s", width, how, what, misfit)
		}
	}
	for _, width := range widths {
		check(width, "")
	}
	b.Run("space the text", `
		const style = new CSSStyleSheet()
		style.replaceSync("* { line-height: 1.5 !important; letter-spacing: .12em !important; word-spacing: .16em !important } p { margin-bottom: 2em !important }")
		document.adoptedStyleSheets = [style]`)
	check(widths[0], " with spaced text")
	b.Run("as it was", `document.adoptedStyleSheets = []`)
}

// testNarrowAndWide: a screen shows the cards of all algorithms. Everything fits, the largest numbers and small
// ones too.
func testNarrowAndWide(t *testing.T, p *Playground) {
	b := open(t, p, five(t.Name()), first(keepSource))
	b.Tolerate("status of 400")
	for _, c := range []struct{ width, height, most int64 }{{1280, 800, 800}, {390, 800, 2400}} {
		b.Do("a screen", chromedp.EmulateViewport(c.width, c.height))
		if h := Read[int64](b, `Math.ceil($("article:last-of-type").getBoundingClientRect().bottom + scrollY)`); h > c.most {
			t.Errorf("at %d px the cards are %d px high, more than %d", c.width, h, c.most)
		}
	}
	b.Run("open all details", openAll)
	b.Type(card(limiter.GCRA, "[name=block_for]"), strings.Repeat("long", 50))
	b.Wait("a long problem", text(card(limiter.GCRA, ".problem"))+`.length > 50`)
	const cutOff = `$$("button, input, select, summary, output, legend, label, dt, dd, h2").filter(e => e.checkVisibility() && e.getBoundingClientRect().width > 0).flatMap(e => {
		const box = e.getBoundingClientRect(), around = (e.closest("article, section") ?? document.body).getBoundingClientRect()
		return box.left < around.left - 1 || box.right > around.right + 1 || e.matches("button, dt, dd, output") && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
			? [(e.closest("article")?.id ?? "") + " " + e.localName + " " + (e.className || e.name || e.id)] : []
	})`
	b.fits("the page", cutOff, widths...)
	for set, want := range map[string]string{
		"limit=9007199254740992 period=1h cost=9007199254740992": "9007T 0",
		"limit=999999 period=1h":                                 "1 999.9K",
		"limit=0.00003 period=1h cost=0.00001":                   "0.00001 0.00002",
	} {
		b.resize(1600)
		b.follow(everyCard(t.Name()+set, strings.Fields(set)...))
		b.Click("#send-all")
		for _, a := range []limiter.Algorithm{limiter.FixedWindow, limiter.SlidingWindowLog} { // of which nothing leaks
			b.Eventually(string(a)+": level, remaining", text(card(a, ".level"))+` + " " + `+text(card(a, ".remaining")), want)
		}
		b.fits(set, cutOff, widths...)
	}
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

// moved fails the test if a box of before has another place now. boxes is the expression of the places.
func (b *Tab) moved(what, boxes string, before []string) {
	b.Helper()
	after := Read[[]string](b, boxes)
	for i := range before {
		if i >= len(after) || before[i] != after[i] {
			b.Errorf("%s: this moved, and maybe more: %s, now %s", what, before[i], after[min(i, len(after)-1)])
			break
		}
	}
	if shifts := Read[[]string](b, "shifts"); len(shifts) > 0 {
		b.Errorf("%s: the browser saw shifts: %s", what, strings.Join(shifts, "; "))
	}
}

// unanswered counts the page's requests, and those that are not answered, from now on.
const unanswered = `
	window.unanswered = window.requests = 0
	const original = fetch
	window.fetch = (...a) => { requests++; unanswered++; return original(...a).finally(() => unanswered--) }`

// testNoShift changes much of the page and checks that nothing moves.
func testNoShift(t *testing.T, p *Playground) {
	for _, width := range []int64{320, 1600} {
		b := open(t, p, everyCard(fmt.Sprint(t.Name(), width), "limit=5", "period=5s"), chromedp.EmulateViewport(width, 900))
		const boxes = `$$("header, section, article, .controls, canvas, .counts, .counts dd, .more, button, input, pre, summary")
			.map(e => { const r = e.getBoundingClientRect(); return [e.localName, e.className, r.x + scrollX, r.y + scrollY, r.width, r.height].join(" ") })`
		b.Wait("the page is complete", `$$("pre.go").every(p => p.textContent)`)
		b.lookForShifts()
		b.Run("the page is drawn, in its place", `await drawn(); shifts.length = 0`)
		b.Run("count what is not answered yet", unanswered)
		before := Read[[]string](b, boxes)
		b.Run("a burst to all", `$("#burst-all").click()`)
		b.Wait("all have answered", answered)
		b.traffic("steady")
		b.Run("the slider to its most", `$("#rate").focus({preventScroll: true})`)
		b.Key("end", kb.End)
		b.Wait("fifty answers on a card", counts(limiter.GCRA)+`.reduce((a, b) => a + b) >= 50`)
		b.traffic("")
		b.Eventually("all is answered", "unanswered", 0) // otherwise it would come after the reset
		b.Run("reset", `$("#reset").click()`)
		b.Eventually("reset", counts(limiter.GCRA), []int{0, 0, 0})
		b.Run("it is drawn", `await drawn()`)
		b.moved(fmt.Sprintf("at %d px", width), boxes, before)
	}
}

// legible measures the contrast of text, light and dark. It fails with fewer than least texts.
func (b *Tab) legible(least int) {
	b.Helper()
	for scheme, right := range map[string]func(back float64) bool{
		"light": func(back float64) bool { return back >= 0.7 }, "dark": func(back float64) bool { return back <= 0.1 },
	} {
		b.Media("prefers-color-scheme", scheme)
		seen := Read[struct {
			Back    float64
			Texts   int
			Failing []string
		}](b, contrasts)
		if seen.Texts < least || !right(seen.Back) || len(seen.Failing) > 0 {
			b.Errorf("%s: %d texts, the page's luminance is %.2f, of too little contrast are %q", scheme, seen.Texts, seen.Back, seen.Failing)
		}
	}
}

// contrasts is the expression of the contrast of all visible text, by WCAG 2.
const contrasts = `(() => {
	const pixel = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true})
	const rgba = colour => {
		pixel.clearRect(0, 0, 1, 1)
		pixel.fillStyle = colour
		pixel.fillRect(0, 0, 1, 1)
		const [r, g, b, a] = pixel.getImageData(0, 0, 1, 1).data
		return [r, g, b, a / 255]
	}
	const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3])).concat(1)
	const behind = e => {
		if (!e) return [255, 255, 255, 1]
		const own = rgba(getComputedStyle(e).backgroundColor)
		return own[3] === 1 ? own : over(own, behind(e.parentElement))
	}
	const luminance = c => {
		const [r, g, b] = c.slice(0, 3).map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
		return 0.2126 * r + 0.7152 * g + 0.0722 * b
	}
	const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
	const own = e => e.matches("input:not([type=range], [type=checkbox], [type=file]), select") ? e.value || e.placeholder
		: [...e.childNodes].filter(n => n.nodeType === Node.TEXT_NODE).map(n => n.data).join("").trim()
	const texts = $$("body *").filter(e => !e.matches(":disabled, script, noscript, option, .unseen") && e.checkVisibility({opacityProperty: true, visibilityProperty: true}) && own(e))
	const failing = []
	for (const e of texts) {
		const back = behind(e)
		const ratio = contrast(luminance(over(rgba(getComputedStyle(e, e.placeholder && !e.value ? "::placeholder" : null).color), back)), luminance(back))
		if (ratio < 4.5) failing.push(ratio.toFixed(2) + " of " + JSON.stringify(own(e).slice(0, 40)) + " in " + e.localName + "." + e.className)
	}
	return {back: luminance(behind(document.body)), texts: texts.length, failing}
})()`

// still: nothing moves by itself for users who prefer that.
func (b *Tab) still() {
	b.Helper()
	b.Media("prefers-reduced-motion", "reduce")
	b.Eventually("animations and transitions, once those under way have ended", `document.getAnimations().length + $$("*").filter(e => getComputedStyle(e).transitionDuration.split(", ").some(d => d !== "0s")).length`, 0)
}

// testCalm: the page moves less for users who prefer reduced motion.
func testCalm(t *testing.T, p *Playground) {
	// The page's clock counts 60 frames as a second, however long they take.
	b := open(t, p, five(t.Name()), first(`
		let frames = 0
		const original = requestAnimationFrame
		const count = () => { frames++; original(count) }
		original(count)
		window.requestAnimationFrame = f => original(() => f(frames * 1000 / 60))`))
	b.Run("count what is drawn", `
		window.drawn = 0
		const clear = CanvasRenderingContext2D.prototype.clearRect
		CanvasRenderingContext2D.prototype.clearRect = function (...a) { if (this.canvas === $("canvas.plot")) drawn++; return clear.apply(this, a) }`)
	b.Click("#burst-all")
	b.Eventually("allowed, delayed, denied", counts(limiter.GCRA), []int{5, 0, 5})
	b.Do("scroll to the first plot", scrollTo("canvas.plot"))
	b.Wait("it is drawn", "drawn > 0")
	inFrames := func() int {
		return Read[int](b, `await new Promise(done => {
			const before = drawn
			let frames = 0
			const next = () => ++frames === 90 ? done(drawn - before) : requestAnimationFrame(next)
			requestAnimationFrame(next)
		})`)
	}
	moving := inFrames()
	b.Media("prefers-reduced-motion", "reduce")
	calm := inFrames()
	t.Logf("drawings in 90 frames: %d; with prefers-reduced-motion %d", moving, calm)
	if calm == 0 || calm*3 > moving {
		t.Errorf("a plot is drawn %d times where it was %d", calm, moving)
	}
	b.still()
}
