package replay

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page
	"encoding/base64"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/accesslog"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

var (
	//go:embed page.css
	styleFile string
	//go:embed page.html
	source string

	style = strings.ReplaceAll(styleFile, "\r\n", "\n") // a browser hashes \n, but git may have written \r\n

	page = template.Must(template.New("page").Funcs(template.FuncMap{
		"grouped": func(n int) string { return grouped(int64(n)) }, "percent": percent, "shown": printable.Shown, "cut": cut,
		"width": func(n, of int) string { return share(float64(n), float64(of)) },
		"stamp": func(t time.Time) string { return t.Format(time.DateTime) },
	}).Parse(source))

	// StyleHash is the hash of the page's only style element for a
	// Content-Security-Policy: sha256-…. A server that sends such a policy with the
	// page must allow it in style-src, and nothing else.
	StyleHash = func() string {
		sum := sha256.Sum256([]byte(style))
		return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
	}()
)

// view has the values for the page's template.
type view struct {
	*Report
	Style  template.CSS
	Policy string // of the content
	Span   string // of the log
	Of     string // the field that is the key, unless it is the client's address
	Part   string
	Queues bool // whether a candidate can delay
	Axes   Axes
	Cards  []card
}

// card has the values of one candidate.
type card struct {
	CandidateReport
	ID, Letter, Title, Longest string
	Bars                       []Bar
	Most                       int // requests of any of TopDenied
}

// WriteHTML writes r as a web page: one file that loads nothing and runs no script. Its
// Content-Security-Policy forbids both. Keys and the log's name are escaped. The error
// is w's.
func (r *Report) WriteHTML(w io.Writer) error {
	v := view{
		Report: r, Of: r.Key,
		Style: template.CSS(style), Policy: "default-src 'none'; style-src '" + StyleHash + "'; base-uri 'none'; form-action 'none'",
		Span: long(r.Last.UnixMicro() - r.First.UnixMicro()), Part: span(time.Duration(r.parts.Length) * time.Microsecond),
		Queues: slices.ContainsFunc(r.Candidates, func(c CandidateReport) bool { return c.Policy.Algorithm == limiter.LeakyBucketQueue }),
		Axes:   newAxes(r.parts, r.busiest()),
	}
	if v.Of == accesslog.DefaultKey {
		v.Of = ""
	}
	for i, c := range r.Candidates {
		card := card{
			CandidateReport: c, ID: string(rune('a' + i)), Title: titles[c.Policy.Algorithm],
			Bars: v.Axes.Bars(c.AllowedOverTime, c.DelayedOverTime, c.DeniedOverTime),
		}
		for _, k := range c.TopDenied {
			card.Most = max(card.Most, k.Requests)
		}
		if len(r.Candidates) > 1 {
			card.Letter = Letter(i)
		}
		if c.Delayed > 0 {
			card.Longest = long(int64(c.LongestDelay * 1e6))
		}
		v.Cards = append(v.Cards, card)
	}
	var b bytes.Buffer // so that an error of the template writes nothing
	if err := page.Execute(&b, v); err != nil {
		return err
	}
	_, err := b.WriteTo(w)
	return err
}

// busiest returns the most requests of any part. The outcomes of any candidate in a
// part add up to its requests.
func (r *Report) busiest() (most int) {
	c := r.Candidates[0]
	for i := range r.parts.Count {
		most = max(most, c.AllowedOverTime[i]+c.DelayedOverTime[i]+c.DeniedOverTime[i])
	}
	return most
}

// cut shortens s to at most to characters. The page has the whole text in a title.
func cut(s string, to int) string {
	if all := []rune(s); len(all) > to {
		return string(all[:to-1]) + "…"
	}
	return s
}
