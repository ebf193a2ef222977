package replay

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/accesslog"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got with a file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		must.Succeed(t, errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(file, got, 0o644)))
	}
	want, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n"))) {
		t.Errorf("%s differs (%v); if this is intended, run go test ./internal/replay -update. Got:\n%s", file, err, got)
	}
}

func html(t testing.TB, r *Report) string {
	t.Helper()
	var b strings.Builder
	must.Succeed(t, r.WriteHTML(&b))
	return b.String()
}

// element is an element of a page.
type element struct {
	name     string
	attrs    map[string]string
	text     string // its own
	children []*element
}

// all returns the elements called name, e included.
func (e *element) all(name string) (found []*element) {
	if e.name == name {
		found = append(found, e)
	}
	for _, c := range e.children {
		found = append(found, c.all(name)...)
	}
	return found
}

// parsePage parses a page, which must also be well-formed XML. It fails for any element
// or attribute that is not on a list without those that run, load, send or style.
func parsePage(t *testing.T, page string) *element {
	t.Helper()
	elements := strings.Fields("html head meta title style body svg pattern rect header h1 p dl div dt dd small main section h2 h3 span " +
		"table caption thead tbody tr th td figure desc line text g details summary footer")
	attributes := strings.Fields("lang charset http-equiv content name class id width height aria-hidden aria-labelledby focusable patternUnits patternTransform " +
		"title role scope x y x1 x2 y1 y2 dy tabindex")
	rest, ok := strings.CutPrefix(page, "<!DOCTYPE html>\n")
	if !ok {
		t.Fatalf("it begins with %.40q", page)
	}
	d := xml.NewDecoder(strings.NewReader(rest))
	root := &element{}
	open := []*element{root}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return root
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, page)
		}
		in := open[len(open)-1]
		switch token := token.(type) {
		case xml.StartElement:
			e := &element{name: token.Name.Local, attrs: map[string]string{}}
			if !slices.Contains(elements, e.name) {
				t.Errorf("an element %q", e.name)
			}
			for _, a := range token.Attr {
				if !slices.Contains(attributes, a.Name.Local) || a.Name.Space != "" {
					t.Errorf("an attribute %s=%q of %s", a.Name.Local, a.Value, e.name)
				}
				e.attrs[a.Name.Local] = a.Value
			}
			in.children = append(in.children, e)
			open = append(open, e)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			in.text += string(token)
		default:
			t.Errorf("%T in the page", token)
		}
	}
}

// three returns candidates that use all features of a page.
func three() []Candidate {
	queue := policy(limiter.LeakyBucketQueue, 30, time.Minute)
	queue.Burst = 2
	block := policy(limiter.FixedWindow, 2, 90*time.Second)
	block.Aligned, block.BlockFor = true, 10*time.Minute
	return []Candidate{{queue, 1}, {block, 2}, {policy(limiter.SlidingWindowLog, 1000, time.Hour), 0.5}}
}

// small returns a log with all kinds of outcomes and lines.
func small(t *testing.T) *Log {
	log := read(t, at(0, 0, 0, 0, 1, 2, 3, 5)+"rubbish\n"+strings.ReplaceAll(at(1, 7, 7, 8, 8), "192.0.2.1", "2001:db8::7"))
	log.Name = "access.log"
	return log
}

func TestWriteHTMLGolden(t *testing.T) {
	page := html(t, run(t, small(t), three()...))
	page = strings.NewReplacer(style, "…", strings.ReplaceAll(StyleHash, "+", "&#43;"), "…").Replace(page)
	golden(t, "page.html", []byte(page))
}

// TestWriteHTMLHarmless: a page runs and loads nothing, and its policy allows only its
// style.
func TestWriteHTMLHarmless(t *testing.T) {
	for _, candidates := range [][]Candidate{{bucket(1)}, three()} {
		page := parsePage(t, html(t, run(t, small(t), candidates...)))
		styles := page.all("style")
		if len(styles) != 1 {
			t.Fatalf("%d styles", len(styles))
		}
		sum := sha256.Sum256([]byte(styles[0].text))
		if want := "sha256-" + base64.StdEncoding.EncodeToString(sum[:]); StyleHash != want {
			t.Errorf("StyleHash is %s, of the style it would be %s", StyleHash, want)
		}
		if strings.Contains(style, "@import") || strings.Contains(strings.ReplaceAll(style, "url(#stripes)", ""), "url(") || strings.Contains(style, "//") {
			t.Error("the style refers to something else")
		}
		var policies []string
		for _, m := range page.all("meta") {
			if m.attrs["http-equiv"] != "" {
				policies = append(policies, m.attrs["http-equiv"]+": "+m.attrs["content"])
			}
		}
		if want := "Content-Security-Policy: default-src 'none'; style-src '" + StyleHash + "'; base-uri 'none'; form-action 'none'"; len(policies) != 1 || policies[0] != want {
			t.Errorf("got %q, want %q", policies, want)
		}
	}
}

// TestWriteHTMLTable: the numbers of a chart are in its table.
func TestWriteHTMLTable(t *testing.T) {
	r := run(t, small(t), three()...)
	page := parsePage(t, html(t, r))
	sections := page.all("section")
	if len(sections) != 3 {
		t.Fatalf("%d sections", len(sections))
	}
	for i, section := range sections {
		c := r.Candidates[i]
		rows := section.all("details")[0].all("tr")[1:]
		if len(rows) != len(c.AllowedOverTime) {
			t.Fatalf("%d rows for %d parts", len(rows), len(c.AllowedOverTime))
		}
		for j, row := range rows {
			var got []string
			for _, td := range row.all("td") {
				got = append(got, td.text)
			}
			if want := fmt.Sprint([]int{c.AllowedOverTime[j], c.DelayedOverTime[j], c.DeniedOverTime[j]}); fmt.Sprint(got) != want {
				t.Errorf("candidate %d, part %d: %v, want %v", i, j, got, want)
			}
		}
	}
}

// TestWriteHTMLSpans: a log of one second, of one request, and of years.
func TestWriteHTMLSpans(t *testing.T) {
	for name, c := range map[string]struct {
		log  string
		want []string
	}{
		"one request": {at(0), []string{"0s", "Requests per second", "10:00:00", "2026-05-17 10:00:00"}},
		"one second":  {at(0, 0, 1), []string{"1 second", "Requests per second"}},
		"a day":       {at(0, 86_400), []string{"1 day", "Requests per 30 minutes", "18 May", "12:00"}},
		"years": {line("a", "29/Feb/2004:23:59:59 +0100") + line("a", "01/Mar/2026:00:00:00 -0800"),
			[]string{"8,035 days 9 hours", "Requests per 224 days", "2004-02-29 22:59:59", "2026-03-01 08:00:00", "Jan 2024<"}},
		"all time": {line("a", "01/Jan/1970:00:00:00 +0000") + line("a", "31/Dec/9999:23:59:59 +0000"), []string{"2,932,896 days 23 hours", " 8"}},
	} {
		page := html(t, run(t, read(t, c.log), bucket(1)))
		parsePage(t, page)
		for _, want := range c.want {
			if !strings.Contains(page, want) {
				t.Errorf("%s: no %q", name, want)
			}
		}
	}
}

// TestWriteHTMLHostile: the names of clients and files are escaped.
func TestWriteHTMLHostile(t *testing.T) {
	long := strings.Repeat("long", 256)
	keys := []string{
		`</th><script>alert(1)</script>`, `"><img/src=x/onerror=alert(1)>`, "\x1b]0;owned\a", "a\u202eb", `{{.Style}}`, `&lt;b&gt;`, `'onload='x`, long, "]]>", "日本語",
	}
	var text strings.Builder
	for _, k := range keys {
		for range 2 {
			text.WriteString(strings.ReplaceAll(at(0), "192.0.2.1", k))
		}
	}
	log := read(t, text.String())
	log.Name = `</title><script>"` + strings.Repeat("name", 50)
	page := parsePage(t, html(t, run(t, log, bucket(1))))
	var shown []string
	for _, span := range page.all("span") {
		if strings.Contains(span.attrs["class"], "key") {
			shown = append(shown, span.text)
			if all, ok := span.attrs["title"]; strings.HasPrefix(span.text, "long") && all != long || ok && all != long {
				t.Errorf("%q has the title %q", span.text, all)
			}
		}
	}
	want := []string{keys[0], keys[1], `"\x1b]0;owned\a"`, `"a\u202eb"`, keys[4], keys[5], keys[6], strings.Repeat("long", 10)[:39] + "…", keys[8], keys[9]}
	slices.Sort(shown)
	slices.Sort(want)
	if !slices.Equal(shown, want) {
		t.Errorf("got  %q\nwant %q", shown, want)
	}
	if name := page.all("header")[0].all("p")[0]; name.attrs["title"] != log.Name || len([]rune(name.text)) != 80 {
		t.Errorf("the name is %q, %q", name.text, name.attrs)
	}
}

func TestWriteHTMLError(t *testing.T) {
	full := errors.New("no space left")
	w := writer(func([]byte) (int, error) { return 0, full })
	if err := run(t, small(t), bucket(1)).WriteHTML(w); !errors.Is(err, full) {
		t.Error(err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// TestWriteHTMLKey: the page names the field that is the key, escaped.
func TestWriteHTMLKey(t *testing.T) {
	t.Parallel()
	parser := must.OK(accesslog.NewParser("status"))(t)
	log := must.OK(Read(t.Context(), parser, strings.NewReader(at(0, 0)), Bounds{}, nil))(t)
	report := run(t, log, bucket(1))
	if page := html(t, report); report.Key != "status" || !strings.Contains(page, "<small>(values of status)</small>") || !strings.Contains(page, "Each value of status is a key.") || strings.Contains(page, "client address") {
		t.Errorf("%s: %s", report.Key, page)
	}
	log.field = "<b>"
	if page := html(t, run(t, log, bucket(1))); strings.Contains(page, "<b>") || !strings.Contains(page, "values of &lt;b&gt;") {
		t.Errorf("got %s", page)
	}
}
