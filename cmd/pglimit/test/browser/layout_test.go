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

// spaced applies the text spacing of WCAG 1.4.12.
const spaced = `
	const style = new CSSStyleSheet()
	style.replaceSync("* { line-height: 1.5 !important; letter-spacing: .12em !important; word-spacing: .16em !important } p { margin-bottom: 2em !important }")
	document.adoptedStyleSheets = [style]`

// TestNarrowAndWide checks that everything fits.
func TestNarrowAndWide(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), five("alice"))
	b.Tolerate("status of 400")
	b.Click("#burst-all")
	for _, a := range limiter.Algorithms() {
		b.Eventually(string(a)+": allowed, delayed, denied", counts(a), burstOfTen(a))
		b.Click(card(a, "summary"))
	}
	b.Type(card(limiter.GCRA, "[name=block_for]"), strings.Repeat("long", 50))
	b.Wait("a long problem", text(card(limiter.GCRA, ".problem"))+`.length > 50`)
	for i, width := range append(widths, widths...) {
		if i == len(widths) {
			b.Run("space the text", spaced)
		}
		b.Do(fmt.Sprintf("a window of %d px", width), chromedp.EmulateViewport(width, 800))
		b.Eventually("its width", `innerWidth`, width)
		if is := Read[int64](b, `document.scrollingElement.scrollWidth`); is > width {
			t.Errorf("at %d px the page is %d px wide: %s", width, is, Read[string](b, `$$("body *")
				.filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest("pre"))
				.map(e => e.localName + "." + e.className).join(", ")`))
		}
		// Nothing is cut off or overlaps, on the cards and above them.
		for _, what := range Read[[]string](b, `$$("button, input, select, summary, output, legend, label, dt, dd, h2").filter(e => e.checkVisibility() && e.getBoundingClientRect().width > 0).flatMap(e => {
			const box = e.getBoundingClientRect(), around = (e.closest("article, section") ?? document.body).getBoundingClientRect()
			return box.left < around.left - 1 || box.right > around.right + 1 || e.matches("button, dt, dd, output") && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
				? [(e.closest("article")?.id ?? "") + " " + e.localName + " " + (e.className || e.name || e.id)] : []
		})`) {
			t.Errorf("at %d px this does not fit: %s", width, what)
		}
	}
}

// TestNumbersFit shows the largest numbers and small ones.
func TestNumbersFit(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), "", first(keepSource))
	for set, want := range map[string]string{
		"limit=9007199254740992 period=1h cost=9007199254740992": "9007T 0",
		"limit=999999 period=1h":                                 "1 999.9K",
		"limit=0.00003 period=1h cost=0.00001":                   "0.00001 0.00002",
	} {
		b.Do("a window of 1600 px", chromedp.EmulateViewport(1600, 800))
		b.follow(everyCard(set, strings.Fields(set)...))
		b.Click("#send-all")
		for _, a := range []limiter.Algorithm{limiter.FixedWindow, limiter.SlidingWindowLog} { // of which nothing leaks
			b.Eventually(string(a)+": level, remaining", text(card(a, ".level"))+` + " " + `+text(card(a, ".remaining")), want)
		}
		for _, width := range widths {
			b.Do(fmt.Sprintf("a window of %d px", width), chromedp.EmulateViewport(width, 800))
			b.Eventually("its width", `innerWidth`, width)
			for _, what := range Read[[]string](b, `$$("dd").filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)`) {
				t.Errorf("at %d px this does not fit: %s", width, what)
			}
		}
	}
}

// TestNoShift changes much of the page and checks that nothing moves.
func TestNoShift(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, width := range widths {
		b := open(t, p, everyCard(fmt.Sprint("at-", width), "limit=5", "period=5s"), chromedp.EmulateViewport(width, 900))
		const boxes = `$$("header, section, article, .controls, canvas, .counts, .counts dd, .traffic, button, input, pre, summary")
			.map(e => { const r = e.getBoundingClientRect(); return [e.localName, e.className, r.x + scrollX, r.y + scrollY, r.width, r.height].join(" ") })`
		b.Wait("the page is complete", `$$("pre.go").every(p => p.textContent)`)
		b.Run("look for shifts", `
			window.shifts = []
			window.began = performance.now()
			new PerformanceObserver(list => shifts.push(...list.getEntries().filter(e => e.startTime > began)
				.map(e => e.value + " of " + e.sources.map(s => s.node?.parentElement?.className + ">" + s.node?.nodeName + "." + s.node?.className))))
				.observe({type: "layout-shift", buffered: true})`)
		b.Run("count what is not answered yet", unanswered)
		before := Read[[]string](b, boxes)
		b.Run("a burst to all", `$("#burst-all").click()`)
		for _, a := range limiter.Algorithms() {
			b.Wait(string(a)+" has answered", answered(a))
		}
		b.Run("the slider for all to its most", `$("#rate-all").focus({preventScroll: true})`)
		b.Key("end", kb.End)
		b.Wait("fifty answers on a card", counts(limiter.GCRA)+`.reduce((a, b) => a + b) >= 50`)
		b.Key("home", kb.Home)
		b.Eventually("all is answered", "unanswered", 0) // otherwise it would come after the reset
		b.Run("reset", `$("#reset").click()`)
		b.Eventually("reset", counts(limiter.GCRA), []int{0, 0, 0})
		after := Read[[]string](b, boxes)
		for i := range before {
			if i >= len(after) || before[i] != after[i] {
				t.Errorf("at %d px this moved, and maybe more: %s, now %s", width, before[i], after[min(i, len(after)-1)])
				break
			}
		}
		if shifts := Read[[]string](b, "shifts"); len(shifts) > 0 {
			t.Errorf("at %d px the browser saw shifts: %s", width, strings.Join(shifts, "; "))
		}
	}
}

// unanswered counts the page's unanswered requests from now on.
const unanswered = `
	window.unanswered = 0
	const original = fetch
	window.fetch = (...a) => { unanswered++; return original(...a).finally(() => unanswered--) }`

// TestContrast measures the contrast of text, light and dark.
func TestContrast(t *testing.T) {
	t.Parallel()
	p := start(t)
	b := open(t, p, five("alice"))
	b.Tolerate("status of 400")
	b.Tolerate("ERR_")
	b.Click("#burst-all")
	for _, a := range limiter.Algorithms() {
		b.Eventually(string(a)+": allowed, delayed, denied", counts(a), burstOfTen(a))
	}
	b.Click(card(limiter.GCRA, "summary"))
	b.Type(card(limiter.FixedWindow, "[name=period]"), "soon")
	b.Click(card(limiter.FixedWindow, ".send"))
	b.Wait("a problem is shown", text(card(limiter.FixedWindow, ".problem"))+` !== ""`)
	b.Click("#burst-all")
	b.Wait("another for all", text("#problem")+` !== ""`)
	p.Kill()
	b.Wait("the connection is lost", text("#status")+`.startsWith("connection lost")`)
	back := map[string]float64{}
	for _, scheme := range []string{"light", "dark"} {
		b.Media("prefers-color-scheme", scheme)
		seen := Read[struct {
			Back    float64
			Texts   int
			Least   float64
			Failing []string
		}](b, contrasts)
		t.Logf("%s: %d texts, the least contrast is %.2f, the page's luminance %.2f", scheme, seen.Texts, seen.Least, seen.Back)
		if seen.Texts < 100 {
			t.Errorf("only %d texts were found", seen.Texts)
		}
		for _, f := range seen.Failing {
			t.Errorf("%s: %s", scheme, f)
		}
		back[scheme] = seen.Back
	}
	if back["light"] < 0.7 || back["dark"] > 0.1 {
		t.Errorf("the page's luminance is %v", back)
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
	const own = e => e.matches("input:not([type=range], [type=checkbox], [type=file]), select") ? e.value
		: [...e.childNodes].filter(n => n.nodeType === Node.TEXT_NODE).map(n => n.data).join("").trim()
	const texts = $$("body *").filter(e => !e.matches(":disabled, script, noscript, option, .unseen") && e.checkVisibility({opacityProperty: true, visibilityProperty: true}) && own(e))
	let least = Infinity
	const failing = []
	for (const e of texts) {
		const back = behind(e)
		const ratio = contrast(luminance(over(rgba(getComputedStyle(e).color), back)), luminance(back))
		least = Math.min(least, ratio)
		if (ratio < 4.5) failing.push(ratio.toFixed(2) + " of " + JSON.stringify(own(e).slice(0, 40)) + " in " + e.localName + "." + e.className)
	}
	return {back: luminance(behind(document.body)), texts: texts.length, least, failing}
})()`

// TestCalm: the page moves less for users who prefer reduced motion.
func TestCalm(t *testing.T) {
	t.Parallel()
	// With a clock on which 60 frames are a second, however long they take.
	b := open(t, start(t), five("alice"), first(`
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
	b.Eventually("allowed, delayed, denied", counts(limiter.GCRA), burstOfTen(limiter.GCRA))
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
	if n := Read[int](b, `document.getAnimations().length + $$("*").filter(e => getComputedStyle(e).transitionDuration.split(", ").some(d => d !== "0s")).length`); n != 0 {
		t.Errorf("%d animations and transitions are left", n)
	}
}
