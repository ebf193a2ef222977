package replay

import (
	"math"
	"strconv"
	"time"
)

const (
	plotHeight = 200 // pixels; widths are shares of the page's width
	gridLines  = 5   // at most, above the axis
	axisTicks  = 8   // approximate number
	barShare   = 0.84
	widestBar  = 6.0 // percent of the plot
)

// Axes are shared by the charts of all candidates, so that their bars can be compared.
type Axes struct {
	Lines []Line
	Ticks []Tick
	parts Parts
	top   int // requests at the upper edge
}

// Line is a horizontal line of the grid.
type Line struct {
	Y     string
	Label string
}

// Tick is a labelled time on the axis.
type Tick struct {
	X     string
	Label string
	Minor bool // without a label on a narrow page
	End   bool // at the end of the axis: its label ends there
	at    int64
}

// Bar is the bar of one part of the time.
type Bar struct {
	From                     string
	Allowed, Delayed, Denied int
	Rects                    []Rect // from the bottom
}

// Rect is the part of a bar for one outcome.
type Rect struct {
	Class, X, Y, Width, Height string
}

// newAxes returns axes for parts. busiest is the most requests of any part.
func newAxes(p Parts, busiest int) Axes {
	step := roundStep(busiest)
	a := Axes{parts: p, top: (busiest + step - 1) / step * step}
	for n := 0; n <= a.top; n += step {
		a.Lines = append(a.Lines, Line{Y: coordinate(plotHeight * (1 - float64(n)/float64(a.top))), Label: grouped(int64(n))})
	}
	times, layout := ticksOf(p)
	labelled := 0 // every second tick is, starting at the first date among hours
	for i, at := range times {
		t, text := utc(at), layout
		if layout == hourLayout && t.Hour() == 0 && t.Minute() == 0 {
			if text = dayLayout; labelled == 0 {
				labelled = i
			}
		}
		a.Ticks = append(a.Ticks, Tick{X: share(float64(at-p.Start), float64(p.Length)*float64(p.Count)), Label: t.Format(text), End: at == p.End(), at: at})
	}
	for i := range a.Ticks {
		a.Ticks[i].Minor = (i-labelled)%2 != 0
	}
	return a
}

// roundStep returns 1, 2 or 5 times a power of ten, so that gridLines steps reach n.
func roundStep(n int) int {
	for unit := 1; ; unit *= 10 {
		for _, step := range [...]int{unit, 2 * unit, 5 * unit} {
			if step*gridLines >= n {
				return step
			}
		}
	}
}

const (
	hourLayout = "15:04"
	dayLayout  = "2 Jan"
)

// ticksOf returns round times, in UTC, and the layout of their labels.
func ticksOf(p Parts) (times []int64, layout string) {
	step := p.Length
	for i := 0; (p.End()-p.Start)/step > axisTicks; i++ {
		step = max(p.Length, lengthOf(i))
	}
	if step >= 28*day {
		return months(p), "Jan 2006"
	}
	for at := floorTo(p.Start+step-1, step); at <= p.End(); at += step {
		times = append(times, at)
	}
	switch {
	case step < minute:
		return times, time.TimeOnly
	case step < day:
		return times, hourLayout
	case p.End()-p.Start < 300*day:
		return times, dayLayout
	}
	return times, "Jan 2006"
}

// months returns the first days of months: of all, or of every second, third, sixth and so
// on of a year.
func months(p Parts) (times []int64) {
	every := 1
	for int((p.End()-p.Start)/(28*day))/every > axisTicks {
		if every == 2 {
			every = 3
		} else {
			every *= 2
		}
	}
	start := utc(p.Start - 1)
	month := start.Year()*12 + int(start.Month()) // the number of the next month, from 0
	for month += (every - month%every) % every; ; month += every {
		at := time.Date(0, time.Month(month+1), 1, 0, 0, 0, 0, time.UTC).UnixMicro()
		if at > p.End() {
			return times
		}
		times = append(times, at)
	}
}

// Bars returns the bars of a candidate: its outcomes in each part.
func (a Axes) Bars(allowed, delayed, denied []int) []Bar {
	slot := 100 / float64(a.parts.Count)
	wide := min(slot*barShare, widestBar)
	all := make([]Bar, a.parts.Count)
	for i := range all {
		b := Bar{From: begin(a.parts, i), Allowed: allowed[i], Delayed: delayed[i], Denied: denied[i]}
		y := float64(plotHeight)
		for _, part := range []struct {
			class string
			n     int
		}{{"allowed", b.Allowed}, {"delayed", b.Delayed}, {"denied", b.Denied}} {
			if part.n == 0 {
				continue
			}
			height := max(2, plotHeight*float64(part.n)/float64(a.top)) // one request among thousands must be visible
			y -= height
			b.Rects = append(b.Rects, Rect{
				Class: part.class, X: coordinate(slot*float64(i)+(slot-wide)/2) + "%", Width: coordinate(wide) + "%", Y: coordinate(y), Height: coordinate(height),
			})
		}
		all[i] = b
	}
	return all
}

// begin returns the time at which the i-th part begins, in words.
func begin(p Parts, i int) string {
	at := utc(p.Begin(i))
	switch {
	case p.Length < minute:
		return at.Format(time.DateTime)
	case p.Length < day:
		return at.Format("2006-01-02 15:04")
	}
	return at.Format(time.DateOnly)
}

// coordinate formats a coordinate, rounded to two places because a page has many.
func coordinate(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }

// share returns n of of in percent, with a percent sign.
func share(n, of float64) string { return coordinate(100*n/of) + "%" }
