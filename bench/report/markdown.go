package report

import (
	"slices"
	"strings"
)

// Markdown returns the run as a page: the chart, the goals, the sections and the settings.
// chart is the chart's file, relative to the page; "" leaves it out.
func (r *Run) Markdown(chart string) string {
	var p Page
	p.Line("# Benchmark")
	p.Line("")
	if r.Quick {
		p.Line("**A quick look: too short to judge by.** `make bench` without QUICK takes its time.")
		p.Line("")
	}
	if chart != "" {
		p.Line("![" + chartTitle + ". The tables below have the figures.](" + chart + ")")
		p.Line("")
	}
	r.goals(&p)
	for _, s := range r.Sections {
		r.section(&p, s)
	}
	r.settings(&p)
	return p.String()
}

// section writes a table of results: medians of the rounds.
func (r *Run) section(p *Page, s Section) {
	var contenders, settings []string
	for _, c := range r.Cells {
		if c.Section == s.Name {
			contenders, settings = add(contenders, c.Contender), add(settings, c.Setting)
		}
	}
	if contenders == nil {
		return
	}
	p.Line("## " + s.Name + ": " + s.Title)
	p.Line("")
	if s.Note != "" {
		p.Line(s.Note)
		p.Line("")
	}
	last := settings[len(settings)-1]
	columns := []string{string(s.Figure) + " by " + s.By}
	for _, name := range settings {
		columns = append(columns, ">"+name)
	}
	for _, f := range s.More {
		columns = append(columns, ">"+string(f))
	}
	p.Table(columns...)
	for _, name := range contenders {
		row := []string{name}
		for _, setting := range settings {
			row = append(row, r.middle(s.Name, name, setting, s.Figure))
		}
		for _, f := range s.More {
			row = append(row, r.middle(s.Name, name, last, f))
		}
		p.Row(row...)
	}
	p.Line("")
}

// add appends a word unless it is there.
func add(list []string, word string) []string {
	if slices.Contains(list, word) {
		return list
	}
	return append(list, word)
}

// middle writes the median of a figure; nothing if it was not measured.
func (r *Run) middle(section, contender, setting string, f Figure) string {
	c := r.cell(section, contender, setting)
	if c == nil {
		return ""
	}
	values := c.each(f)
	if len(values) == 0 {
		return ""
	}
	return f.Format(Median(values))
}

// settings writes how was measured, versions, and the contenders.
func (r *Run) settings(p *Page) {
	p.Line("## Settings")
	p.Line("")
	for _, n := range r.Notes {
		p.Line("- " + n)
	}
	p.Line("")
	p.Table("", "")
	for _, f := range r.Facts {
		p.Row(f.Name, f.Value)
	}
}

// Page is a page of Markdown.
type Page struct{ strings.Builder }

// Line writes a line.
func (p *Page) Line(s string) { p.WriteString(s + "\n") }

// Table begins a table; a column whose name begins with > is right-aligned.
func (p *Page) Table(columns ...string) {
	rule := "|"
	for i, c := range columns {
		name, right := strings.CutPrefix(c, ">")
		columns[i], rule = name, rule+"---"
		if right {
			rule += ":"
		}
		rule += "|"
	}
	p.Row(columns...)
	p.Line(rule)
}

// Row writes a row of a table.
func (p *Page) Row(cells ...string) { p.Line("| " + strings.Join(cells, " | ") + " |") }
