package browser

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/pglimit/pglimit/limiter"
)

// drawn is what is on a plot, as it was asked to be drawn last.
type drawn struct {
	Width, Height float64
	Now           float64      // Unix milliseconds
	Marks         [][2]float64 // of what was allowed
	Curve         [][2]float64
	Capacity      float64
	At            []float64 // of the decisions, as the server told them
}

// TestPlot looks at where the marks, the curve and the capacity are drawn.
func TestPlot(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), everyCard("alice", "limit=5", "period=3s"))
	for _, a := range []limiter.Algorithm{limiter.TokenBucket, limiter.FixedWindow, limiter.SlidingWindowLog} {
		b.Do("scroll to the plot", scrollTo(card(a, "canvas")))
		b.Run("keep what is drawn", fmt.Sprintf(`
			const plot = $("#card-%s canvas"), p = CanvasRenderingContext2D.prototype
			const original = window.original ??= {...Object.fromEntries(["beginPath", "clearRect", "arc", "moveTo", "lineTo", "stroke"].map(n => [n, p[n]]))}
			const fresh = () => ({width: plot.clientWidth, height: plot.clientHeight, now: Date.now(), marks: [], curve: [], capacity: 0})
			let next = fresh(), line = []
			window.drawn = next
			const patch = (name, f) => p[name] = function (...a) { if (this.canvas === plot) f(this, ...a); return original[name].apply(this, a) }
			patch("clearRect", () => { drawn = next; next = fresh() })
			patch("arc", (c, x, y) => next.marks.push([x, y]))
			patch("beginPath", () => line = [])
			patch("moveTo", (c, x, y) => line = [[x, y]])
			patch("lineTo", (c, x, y) => line.push([x, y]))
			patch("stroke", c => { if (c.getLineDash().length) next.capacity = line[0][1]; else if (c.lineWidth === 2 && !next.curve.length) next.curve = line }) // crosses come later
			window.at = []
			window.source?.close()
			window.source = new EventSource("/api/events?key=alice")
			source.addEventListener("decision", e => { const d = JSON.parse(e.data); if (d.outcome === "allowed") at.push(d.at) })
			await new Promise(done => source.addEventListener("hello", done))`, a))
		b.Click(card(a, ".burst-10"))
		b.Wait("it has answered", answered(a))
		look := func(step, when string) (d drawn) {
			b.Wait(step, when)
			return Read[drawn](b, `({...drawn, at})`)
		}
		d := look("a mark for each", "drawn.marks.length >= 5 && drawn.marks.length === at.length")
		bottom, top := d.Height-20, 20.0
		near := func(what string, is, want, by float64) {
			t.Helper()
			if math.Abs(is-want) > by {
				t.Errorf("%s: %s is at %.1f, not %.1f", a, what, is, want)
			}
		}
		near("the capacity", d.Capacity, top, 0.5)
		slices.SortFunc(d.Marks, func(a, b [2]float64) int { return cmp.Compare(b[1], a[1]) }) // events come in any order
		for i, m := range d.Marks {
			if a != limiter.TokenBucket { // of which a little leaks
				near(fmt.Sprint("the mark of level ", i+1), m[1], bottom-(bottom-top)*float64(i+1)/5, 0.5)
			}
			ago := (d.Now - d.At[i]) / 30_000 * (d.Width - 16)
			near("in time, the mark", m[0], d.Width-8-ago, d.Width/15) // 2 s, for the clocks
		}
		d = look("all has leaked", text(card(a, ".level"))+` === "0" && drawn.curve.length && Math.abs(drawn.curve.at(-1)[1] - drawn.height + 20) < 0.1`)
		slopes, highest := 0, bottom
		for i, p := range d.Curve {
			highest = min(highest, p[1])
			if i > 0 && math.Abs(p[0]-d.Curve[i-1][0]) > 0.1 && math.Abs(p[1]-d.Curve[i-1][1]) > 0.1 {
				slopes++
			}
		}
		steps := a != limiter.TokenBucket
		if steps {
			near("the curve's highest", highest, top, 1)
		}
		if steps != (slopes == 0) {
			t.Errorf("%s: the curve has %d slopes", a, slopes)
		}
	}
}
