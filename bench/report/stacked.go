package report

import (
	"fmt"
	"math"
	"strings"
)

// The dimensions of a stacked chart.
const (
	stackedWidth  = 720
	stackedHeight = 380
	stackedLeft   = 56
	stackedTop    = 48
	stackedBottom = stackedHeight - 40
)

// Stacked draws sums over a time in seconds as areas upon each other, and a line above them. All
// have equally many values, at equal distances from 0 on.
func Stacked(title, ofLine, ofAreas string, seconds float64, areas [][]float64, line []float64) string {
	var b strings.Builder
	most, n := line[len(line)-1], len(line)-1
	x := func(i int) int { return stackedLeft + i*(stackedWidth-stackedLeft-margin)/n }
	y := func(v float64) int { return stackedBottom - int(v/most*(stackedBottom-stackedTop)) }
	point := func(i int, v float64) string { return fmt.Sprintf("%d,%d ", x(i), y(v)) }
	for v := 0.0; v <= most; v += step(most) {
		fmt.Fprintf(&b, `<text class="text" x="%d" y="%d" text-anchor="end"%s>%s</text><path class="grid" d="M%d %dH%d"/>`+"\n",
			stackedLeft-6, y(v)+4, small, Count(v), stackedLeft, y(v), stackedWidth-margin)
	}
	for t := 0.0; t <= seconds; t += step(seconds) {
		at := stackedLeft + int(t/seconds*(stackedWidth-stackedLeft-margin))
		fmt.Fprintf(&b, `<text class="text" x="%d" y="%d" text-anchor="middle"%s>%s s</text>`+"\n", at, stackedBottom+18, small, trim(t))
	}
	below := make([]float64, n+1)
	for k, a := range areas {
		var up, down string
		for i := range a {
			down = point(i, below[i]) + down
			below[i] += a[i]
			up += point(i, below[i])
		}
		fmt.Fprintf(&b, `<polygon class="c0%s" points="%s"/>`+"\n", []string{"", " server"}[k%2], up+strings.TrimSpace(down))
	}
	var path string
	for i, v := range line {
		path += point(i, v)
	}
	fmt.Fprintf(&b, `<polyline class="line" points="%s"/>`+"\n", strings.TrimSpace(path))
	b.WriteString(rect("c4", stackedLeft, 20, 12, 3) + text(stackedLeft+18, 26, plain, ofLine) + rect("c0", stackedLeft+190, 14, 12, 12) + text(stackedLeft+208, 26, plain, ofAreas) + "\n")
	return fmt.Sprintf(chartHead, stackedWidth, stackedHeight, title, "The page has the figures.") + b.String() + "</svg>\n"
}

// step is the distance of a scale's lines: 1, 2 or 5 times a power of ten, for at most six.
func step(most float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(most/5)))
	for _, times := range []float64{1, 2, 5} {
		if most <= 5*times*power {
			return times * power
		}
	}
	return 10 * power
}
