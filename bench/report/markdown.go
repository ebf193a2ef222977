package report

import (
	"slices"
	"strings"
)

// Markdown returns the run as a page: the chart, the goals, the sections and the settings.
// chart is the chart's file, relative to the page; "" leaves it out.
func (r *Run) Markdown(chart string) string {
	var p page
	p.line("# Benchmark")
	p.line("")
	if r.Quick {
		p.line("**A quick look: too short to judge by.** `make bench` without QUICK takes its time.")
		p.line("")
	}
	if chart != "" {
		p.line("![" + chartTitle + ". The tables below have the figures.](" + chart + ")")
		p.line("")
	}
	r.goals(&p)
	for _, s := range r.Sections {
		r.section(&p, s)
	}
	r.settings(&p)
	return p.String()
}

// section writes a table of results: medians of the rounds.
func (r *Run) section(p *page, s Section) {
	var contenders, settings []string
	for _, c := range r.Cells {
		if c.Section == s.Name {
			contenders, settings = add(contenders, c.Contender), add(settings, c.Setting)
		}
	}
	if contenders == nil {
		return
	}
	p.line("## " + s.Name + ": " + s.Title)
	p.line("")
	if s.Note != "" {
		p.line(s.Note)
		p.line("")
	}
	last := settings[len(settings)-1]
	columns := []string{string(s.Figure) + " by " + s.By}
	for _, name := range settings {
		columns = append(columns, ">"+name)
	}
	for _, f := range s.More {
		columns = append(columns, ">"+string(f))
	}
	p.table(columns...)
	for _, name := range contenders {
		row := []string{name}
		for _, setting := range settings {
			row = append(row, r.middle(s.Name, name, setting, s.Figure))
		}
		for _, f := range s.More {
			row = append(row, r.middle(s.Name, name, last, f))
		}
		p.row(row...)
	}
	p.line("")
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
	return f.format(median(values))
}

// settings writes how was measured, versions, and the contenders.
func (r *Run) settings(p *page) {
	p.line("## Settings")
	p.line("")
	for _, n := range r.Notes {
		p.line("- " + n)
	}
	p.line("")
	p.table("", "")
	for _, f := range r.Facts {
		p.row(f.Name, f.Value)
	}
}

// page is a page of Markdown.
type page struct{ strings.Builder }

func (p *page) line(s string) { p.WriteString(s + "\n") }

// table begins a table; a column whose name begins with > is right-aligned.
func (p *page) table(columns ...string) {
	rule := "|"
	for i, c := range columns {
		name, right := strings.CutPrefix(c, ">")
		columns[i], rule = name, rule+"---"
		if right {
			rule += ":"
		}
		rule += "|"
	}
	p.row(columns...)
	p.line(rule)
}

func (p *page) row(cells ...string) { p.line("| " + strings.Join(cells, " | ") + " |") }
