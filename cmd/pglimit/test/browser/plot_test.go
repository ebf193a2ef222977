package browser

import (
	"fmt"
	"math"
	"testing"

	"github.com/pglimit/pglimit/limiter"
)

// drawn is the last drawing instructions of a plot.
type drawn struct {
	Height       float64
	Marks, Curve [][2]float64              // the marks are of allowed requests
	Capacity     [][2]float64              // the ends of the line
	Labels       []string                  // those that marks may be drawn over
	Told         []struct{ Level float64 } // allowed requests, as the server sent them
}

// testPlot checks where the marks, the curve and the capacity are drawn.
func testPlot(t *testing.T, p *Playground) {
	b := open(t, p, everyCard(t.Name(), "limit=5", "period=3s"))
	for _, a := range []limiter.Algorithm{limiter.TokenBucket, limiter.SlidingWindowLog} {
		b.Do("scroll to the plot", scrollTo(card(a, "canvas")))
		b.Run("keep what is drawn", fmt.Sprintf(`
			const plot = $("#card-%s canvas"), p = CanvasRenderingContext2D.prototype
			const original = window.original ??= {...Object.fromEntries(["beginPath", "clearRect", "arc", "moveTo", "lineTo", "stroke", "rect", "fillText"].map(n => [n, p[n]]))}
			const fresh = () => ({width: plot.clientWidth, height: plot.clientHeight, now: Date.now(), marks: [], curve: [], capacity: [[0, 0], [0, 0]], texts: [], labels: []})
			let next = fresh(), line = []
			window.drawn = next
			const patch = (name, f) => p[name] = function (...a) { if (this.canvas === plot) f(this, ...a); return original[name].apply(this, a) }
			patch("clearRect", () => { drawn = next; next = fresh() })
			patch("arc", (c, x, y) => next.marks.push([x, y]))
			patch("beginPath", () => line = [])
			patch("moveTo", (c, x, y) => line = [[x, y]])
			patch("lineTo", (c, x, y) => line.push([x, y]))
			patch("stroke", c => { if (c.getLineDash().length) next.capacity = line; else if (c.lineWidth === 2 && !next.curve.length) next.curve = line }) // crosses come later
			patch("fillText", (c, text, x, y) => {
				const m = c.measureText(text)
				next.texts.push([text, x - m.actualBoundingBoxLeft, x + m.actualBoundingBoxRight, y - m.actualBoundingBoxAscent, y + m.actualBoundingBoxDescent])
			})
			patch("rect", (c, x, y, width, height) => // that marks are cut to
				next.labels = next.texts.filter(([, left, right, top, bottom]) => right > x && left < x + width && bottom > y && top < y + height).map(([text]) => text))
			window.told = []
			window.source?.close()
			window.source = new EventSource("/api/events?key=%s")
			source.addEventListener("decision", e => { const d = JSON.parse(e.data); if (d.outcome === "allowed") told.push(d) })
			await new Promise(done => source.addEventListener("hello", done))`, a, t.Name()))
		b.Click(card(a, ".burst-10"))
		b.Wait("it has answered", counts(a)+`.reduce((a, b) => a + b) === 10`)
		look := func(step, when string) (d drawn) {
			b.Wait(step, when)
			return Read[drawn](b, `({...drawn, told})`)
		}
		// Within 2 s: the page learns the server's clock from messages that may come late.
		d := look("a mark for each, in its time", `drawn.marks.length >= 5 && drawn.marks.length === told.length && drawn.marks.every(([x], i) =>
			Math.abs(x - drawn.capacity[1][0] + (drawn.now - told[i].at) / 30_000 * (drawn.capacity[1][0] - drawn.capacity[0][0])) <= drawn.width / 15)`)
		bottom, top := d.Height-16, 14.0
		near := func(what string, is, want, by float64) {
			t.Helper()
			if math.Abs(is-want) > by {
				t.Errorf("%s: %s is at %.1f, not %.1f", a, what, is, want)
			}
		}
		near("the capacity", d.Capacity[0][1], top, 0.5)
		if len(d.Labels) > 0 {
			t.Errorf("%s: marks are drawn over the labels %q", a, d.Labels)
		}
		for i, m := range d.Marks {
			near(fmt.Sprint("the mark of level ", d.Told[i].Level), m[1], bottom-(bottom-top)*d.Told[i].Level/5, 0.5)
		}
		d = look("all has leaked", text(card(a, ".level"))+` === "0" && drawn.curve.length && Math.abs(drawn.curve.at(-1)[1] - drawn.height + 16) < 0.1`)
		slopes, highest, most := 0, bottom, 0.0
		for _, told := range d.Told {
			most = max(most, told.Level)
		}
		for i, p := range d.Curve {
			highest = min(highest, p[1])
			if i > 0 && math.Abs(p[0]-d.Curve[i-1][0]) > 0.1 && math.Abs(p[1]-d.Curve[i-1][1]) > 0.1 {
				slopes++
			}
		}
		steps := a != limiter.TokenBucket
		if steps {
			near("the curve's highest", highest, bottom-(bottom-top)*most/5, 1)
		}
		if steps != (slopes == 0) {
			t.Errorf("%s: the curve has %d slopes", a, slopes)
		}
	}
}

// testForcedColours: if the system replaces the page's colours, the outcomes are still
// distinguishable, and all text and the focus are visible.
func testForcedColours(t *testing.T, p *Playground) {
	b := open(t, p, five(t.Name()))
	b.Media("forced-colors", "active")
	a := limiter.LeakyBucketQueue // which delays, too
	b.Do("scroll to the plot", scrollTo(card(a, "canvas")))
	b.Run("a burst", `$("#card-leaky_bucket_queue .burst-10").click()`)
	b.Eventually("allowed, delayed, denied", counts(a), []int{1, 4, 5})
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
