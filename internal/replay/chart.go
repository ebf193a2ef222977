package replay

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

const (
	plotHeight = 200 // pixels; widths are shares of whatever the page gives
	gridLines  = 5   // at most, above the axis
	axisTicks  = 8   // about how many
	barShare   = 0.84
	widestBar  = 6.0 // percent of the plot
)

// axes are what the charts of all candidates have in common, so that their bars
// can be compared.
type axes struct {
	Lines []gridLine
	Ticks []tick
	top   int // requests at the upper edge
}

type gridLine struct {
	Y     string
	Label string
}

type tick struct {
	X     string
	Label string
	Minor bool // without a label where the page is narrow
}

// bar is one part of the log's time.
type bar struct {
	From                     string
	Allowed, Delayed, Denied int
	Rects                    []rect // from the bottom
}

type rect struct {
	Class, X, Y, Width, Height string
}

// axesOf has the scale that the busiest part needs: the outcomes of a part add
// up to its requests, whoever decides.
func axesOf(r *Report) axes {
	c, busiest := r.Candidates[0], 0
	for i := range r.parts.count {
		busiest = max(busiest, c.AllowedOverTime[i]+c.DelayedOverTime[i]+c.DeniedOverTime[i])
	}
	step := roundStep(busiest)
	a := axes{top: (busiest + step - 1) / step * step}
	for n := 0; n <= a.top; n += step {
		a.Lines = append(a.Lines, gridLine{Y: number(plotHeight * (1 - float64(n)/float64(a.top))), Label: grouped(int64(n))})
	}
	times, layout := ticksOf(r.parts)
	labelled := 0 // every second one is, from the first that is a date among hours
	for i, at := range times {
		t, text := utc(at), layout
		if layout == hourLayout && t.Hour() == 0 && t.Minute() == 0 {
			if text = dayLayout; labelled == 0 {
				labelled = i
			}
		}
		a.Ticks = append(a.Ticks, tick{X: width(float64(at-r.parts.start), float64(r.parts.length)*float64(r.parts.count)), Label: t.Format(text)})
	}
	for i := range a.Ticks {
		a.Ticks[i].Minor = (i-labelled)%2 != 0
	}
	return a
}

// roundStep is 1, 2 or 5 times a power of ten, so that gridLines of it are enough.
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
	secondLayout = "15:04:05"
	hourLayout   = "15:04"
	dayLayout    = "2 Jan"
	monthLayout  = "Jan 2006"
	yearLayout   = "2006"
)

// ticksOf finds round times, in UTC, and how to write them.
func ticksOf(p parts) (times []int64, layout string) {
	end := p.start + p.length*int64(p.count)
	for _, step := range lengths {
		if (end-p.start)/step > axisTicks || step > 14*day {
			continue
		}
		for at := floor(p.start+step-1, step); at <= end; at += step {
			times = append(times, at)
		}
		switch {
		case step < minute:
			return times, secondLayout
		case step < day:
			return times, hourLayout
		}
		return times, dayLayout
	}
	for _, months := range [...]int{1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12000} {
		if (end-p.start)/(30*day)/int64(months) > axisTicks {
			continue
		}
		layout = monthLayout
		if months >= 12 {
			layout = yearLayout
		}
		first := utc(p.start).Year() / max(1, months/12) * max(1, months/12)
		for m := 0; ; m += months {
			at := time.Date(first, time.Month(1+m), 1, 0, 0, 0, 0, time.UTC).UnixMicro()
			if at > end {
				return times, layout
			}
			if at >= p.start {
				times = append(times, at)
			}
		}
	}
	return nil, ""
}

// bars are a candidate's outcomes over time.
func (a axes) bars(p parts, c CandidateReport) []bar {
	slot := 100 / float64(p.count)
	wide := min(slot*barShare, widestBar)
	all := make([]bar, p.count)
	for i := range all {
		b := bar{From: partTime(p, i), Allowed: c.AllowedOverTime[i], Delayed: c.DelayedOverTime[i], Denied: c.DeniedOverTime[i]}
		y := float64(plotHeight)
		for _, part := range []struct {
			class string
			n     int
		}{{"allowed", b.Allowed}, {"delayed", b.Delayed}, {"denied", b.Denied}} {
			if part.n == 0 {
				continue
			}
			height := max(2, plotHeight*float64(part.n)/float64(a.top)) // one among thousands is to be seen
			y -= height
			b.Rects = append(b.Rects, rect{
				Class: part.class, X: number(slot*float64(i)+(slot-wide)/2) + "%", Width: number(wide) + "%", Y: number(y), Height: number(height),
			})
		}
		all[i] = b
	}
	return all
}

// partTime is when a part begins.
func partTime(p parts, i int) string {
	at := utc(p.start + int64(i)*p.length)
	switch {
	case p.length < minute:
		return at.Format(time.DateTime)
	case p.length < day:
		return at.Format("2006-01-02 15:04")
	}
	return at.Format(time.DateOnly)
}

// number is a coordinate: short, for there are many.
func number(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }

// width is a share of the page's own width.
func width(n, of float64) string { return number(100*n/of) + "%" }

// percent is a share with one digit, which is not 0 or 100 unless that is so.
func percent(n, of int) string {
	v := 100 * float64(n) / float64(of)
	switch {
	case n > 0 && v < 0.1:
		return "< 0.1 %"
	case n < of && v > 99.9:
		return "> 99.9 %"
	}
	return fmt.Sprintf("%.1f %%", v)
}
