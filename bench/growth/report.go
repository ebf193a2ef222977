package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/bench/memory"
)

// report is all measurements.
type report struct {
	plan        plan
	Environment environment
	Sizes       []sizeResult // fewest rows first
	Attack      *soakResult
	Zipf        *soakResult
}

// environment is the machine and the server.
type environment struct {
	When                          time.Time
	Go, PostgreSQL, Pgx, Platform string
	CPUs, Procs                   int
	Settings                      []setting
}

// setting is one of the server's.
type setting struct{ Name, Value string }

// bound limits the p50 with the most rows, as a multiple of that with the fewest.
const bound = 1.3

// markdown returns the report as Markdown.
func (r *report) markdown() string {
	var b strings.Builder
	r.head(&b)
	r.rows(&b)
	r.attack(&b)
	r.zipf(&b)
	return b.String()
}

func (r *report) head(b *strings.Builder) {
	e := r.Environment
	fmt.Fprintf(b, "## Growth\n\n")
	if r.plan.Quick {
		fmt.Fprintf(b, "**A quick run: it shows that the measurement works, and settles nothing.**\n\n")
	}
	fmt.Fprintf(b, "Measured on %s by `make growth`: PostgreSQL %s, pgx %s, %s (GOMAXPROCS %d), %s with %d CPUs;\n",
		e.When.Format(time.DateOnly), e.PostgreSQL, e.Pgx, e.Go, e.Procs, e.Platform, e.CPUs)
	fmt.Fprintf(b, "server and callers on one machine, over TCP. All decisions are `token_bucket`, Relaxed, one unit, with\nbatching as it is by default and no deny cache; a pool of %d connections; each caller sends again as soon as it\nhas its answer. The server's settings, its defaults but for the size of its buffers:\n", callers)
	var settings []string
	for _, s := range e.Settings {
		settings = append(settings, fmt.Sprintf("`%s` %s", s.Name, s.Value))
	}
	fmt.Fprintf(b, "%s.\nMB are 2^20 bytes.\n\n", strings.Join(settings, ", "))
}

func (r *report) rows(b *strings.Builder) {
	fmt.Fprintf(b, "### Many rows\n\nKeys drawn evenly from all rows. Medians of %d rounds; in each all sizes in turn, %v each after %v of warming up\nand a checkpoint.\n\n",
		r.plan.Rounds, short(r.plan.Cell), short(r.plan.Warm))
	line(b, "rows", "callers", "p50 µs", "p99 µs", "decisions/s")
	rule(b, 5)
	for _, n := range []int{1, callers} {
		for _, s := range r.Sizes {
			cells := s.Cells[n]
			line(b, grouped(s.Rows), strconv.Itoa(n),
				grouped(int64(median(cells, func(c cell) float64 { return micros(c.P50) }))),
				grouped(int64(median(cells, func(c cell) float64 { return micros(c.P99) }))),
				grouped(int64(median(cells, func(c cell) float64 { return c.PerSecond }))))
		}
	}
	first, last := r.Sizes[0].Rows, r.Sizes[len(r.Sizes)-1].Rows
	fmt.Fprintf(b, "\nReach: p50 with %s rows at most %v times that with %s:\n\n", grouped(last), bound, grouped(first))
	for _, n := range []int{1, callers} {
		fmt.Fprintf(b, "- %s: %s\n", plural(n, "caller"), verdict(ratios(r.Sizes, n)))
	}
	fmt.Fprintf(b, "\nThe table, filled and in the end, in bytes for each row; memory with %d callers in MB (this process: live\nheap and taken from the system; the server: all its processes, buffers included, and what of it is their own):\n\n", callers)
	line(b, "rows", "table", "in the end", "indexes", "in the end", "HOT %", "heap", "system", "server", "its own")
	rule(b, 10)
	for _, s := range r.Sizes {
		per := func(bytes int64) string { return strconv.FormatFloat(float64(bytes)/float64(s.Rows), 'f', 1, 64) }
		each := func(of stats) string {
			var words []string
			for _, i := range of.Indexes {
				words = append(words, i.Name+" "+per(i.Bytes))
			}
			return strings.Join(words, ", ")
		}
		line(b, append([]string{grouped(s.Rows), per(s.Before.Table), per(s.After.Table), each(s.Before), each(s.After),
			percent(s.After.hotSince(s.Before))}, memoryCells(s.Memory)...)...)
	}
	fmt.Fprintf(b, "\nThe rows were filled in the order of their keys, so that the indexes are packed; in the traffic below they grow by\nthemselves.\n\n")
}

func (r *report) attack(b *strings.Builder) {
	a := r.Attack
	fmt.Fprintf(b, "### An attacker\n\n%d callers, each with a new key on every call, for %v; the policy's period is %v, so a row expires that long\nafter its one use; the janitor sweeps every %v.\n\n", callers, short(a.Length), short(a.Policy.Period), short(a.Interval))
	a.moments(b)
	fmt.Fprintf(b, "\nThe janitor made %s under load, deleted %s rows a second, and had deleted every row %v after the last\ncall. In the end the table was %s MB and its indexes %s MB; autovacuum runs: %d.\n",
		plural(a.Sweeps, "sweep"), grouped(int64(float64(a.Total.Removed)/a.Total.duration.Seconds())), a.Drained.Round(100*time.Millisecond),
		megabytes(a.Total.Stats.Table), megabytes(a.Total.Stats.indexBytes()), a.Total.Stats.Vacuums)
	a.memory(b)
	b.WriteString("\n")
}

func (r *report) zipf(b *strings.Builder) {
	z := r.Zipf
	fmt.Fprintf(b, "### Zipf traffic\n\n%d callers for %v, over %s keys with s = %v, on a table that is empty at first; %v units per %v for a key;\nthe janitor sweeps every %v.\n\n",
		callers, short(z.Length), grouped(zipfKeys), zipfS, z.Policy.Limit, short(z.Policy.Period), short(z.Interval))
	z.moments(b)
	fmt.Fprintf(b, "\nOf the decisions %s %% were denials; %s %% of the updates were HOT. The janitor made %s and deleted\n%s rows a second; autovacuum runs: %d.\n",
		percent(float64(z.Total.denied)/float64(max(1, z.Total.decisions()))), percent(z.Total.HOT), plural(z.Sweeps, "sweep"),
		grouped(int64(float64(z.Total.Removed)/z.Total.duration.Seconds())), z.Total.Stats.Vacuums)
	z.memory(b)
}

// moments is the table of a soak.
func (k *soakResult) moments(b *strings.Builder) {
	line(b, "until", "p50 µs", "p99 µs", "decisions/s", "deleted/s", "rows", "dead", "table MB", "indexes MB", "HOT %")
	rule(b, 10)
	row := func(name string, m moment, last stats) {
		line(b, name, grouped(int64(micros(m.quantile(50)))), grouped(int64(micros(m.quantile(99)))), grouped(int64(m.perSecond())),
			grouped(int64(float64(m.Removed)/m.duration.Seconds())), grouped(last.Live), grouped(last.Dead),
			megabytes(last.Table), megabytes(last.indexBytes()), percent(m.HOT))
	}
	for _, m := range k.Moments {
		row(short(m.At), m, m.Stats)
	}
	row("all", k.Total, k.Moments[len(k.Moments)-1].Stats)
	fmt.Fprintf(b, "\nRows and dead rows are the server's estimates.\n")
}

// memory is the table of a soak's memory, before and after.
func (k *soakResult) memory(b *strings.Builder) {
	fmt.Fprintf(b, "\n")
	line(b, "memory in MB", "heap", "system", "server", "its own")
	rule(b, 5)
	line(b, append([]string{"start"}, memoryCells(k.Start)...)...)
	line(b, append([]string{"end"}, memoryCells(k.End)...)...)
	fmt.Fprintf(b, "\nOf the heap at the end %s MB are the measurement's own histograms.\n",
		megabytes(int64((callers+len(k.Moments)+1)*k.Total.calls.ByteSize())))
}

func memoryCells(m memory.Use) []string {
	return []string{megabytes(m.Heap), megabytes(m.Sys), megabytes(m.Server), megabytes(m.ServerOwn)}
}

// verdict says whether the median of the rounds' ratios is within the bound.
func verdict(of []float64) string {
	m := median(of, func(f float64) float64 { return f })
	word := "reached"
	if m > bound {
		word = "not reached"
	}
	return fmt.Sprintf("%.3f (rounds %.3f to %.3f): **%s**", m, slices.Min(of), slices.Max(of), word)
}

func line(b *strings.Builder, cells ...string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

func rule(b *strings.Builder, columns int) {
	b.WriteString("|" + strings.Repeat("--:|", columns) + "\n")
}

// short writes 10m0s as 10m.
func short(d time.Duration) string {
	if s := d.String(); strings.HasSuffix(s, "m0s") {
		return strings.TrimSuffix(s, "0s")
	}
	return d.String()
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// megabytes formats bytes in units of 2^20; a negative number is unknown.
func megabytes(bytes int64) string {
	if bytes < 0 {
		return "n/a"
	}
	return strconv.FormatFloat(float64(bytes)/(1<<20), 'f', 1, 64)
}

// percent formats a share in hundredths; a negative number is unknown.
func percent(share float64) string {
	if share < 0 {
		return "n/a"
	}
	return strconv.FormatFloat(100*share, 'f', 2, 64)
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return grouped(int64(n)) + " " + what
}
