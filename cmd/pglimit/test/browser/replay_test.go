package browser

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// accessLog is a log of 19 requests and one line that is none. One client sends ten, most
// of them around the edge of its window of a minute.
func accessLog() []byte {
	began := time.Date(2026, 5, 17, 10, 5, 0, 0, time.UTC)
	var log bytes.Buffer
	line := func(client string, second int) {
		fmt.Fprintf(&log, "%s - - [%s] \"GET / HTTP/1.1\" 200 5120\n", client, began.Add(time.Duration(second)*time.Second).Format("02/Jan/2006:15:04:05 -0700"))
	}
	line("192.0.2.7", 0)
	for n := range 9 {
		line(fmt.Sprint("198.51.100.", 1+n), 1+n)
	}
	log.WriteString("this is no request\n")
	for range 4 {
		line("192.0.2.7", 59)
	}
	for range 5 {
		line("192.0.2.7", 61)
	}
	return log.Bytes()
}

// file writes a file for a test.
func file(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.Succeed(t, os.WriteFile(path, content, 0o600))
	return path
}

// drop drops a file on an element as a person does.
func (b *Tab) drop(path, selector string) {
	b.Helper()
	b.dropData("drop "+filepath.Base(path), selector, &input.DragData{Items: []*input.DragDataItem{}, Files: []string{path}, DragOperationsMask: 1})
}

func (b *Tab) dropData(step, selector string, data *input.DragData) {
	b.Helper()
	b.Do("scroll to "+selector, scrollTo(selector))
	at := Read[[2]float64](b, fmt.Sprintf(`(r => [r.x + r.width / 2, r.y + r.height / 2])($(%q).getBoundingClientRect())`, selector))
	b.Do(step+" on "+selector, func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
		for _, kind := range []input.DispatchDragEventType{input.DispatchDragEventTypeDragEnter, input.DispatchDragEventTypeDragOver, input.DispatchDragEventTypeDrop} {
			if _, err := cdp.Call(ctx, t, input.DispatchDragEvent, input.DispatchDragEventParams{
				Type: kind, X: at[0], Y: at[1], Data: data,
			}); err != nil {
				return none, err
			}
		}
		return none, nil
	})
}

func (b *Tab) choose(path string) {
	b.Helper()
	b.Do("choose "+filepath.Base(path), chromedp.SetUploadFiles(chromedp.ID("file"), []string{path}))
}

const (
	replayStatus = `$("#replay-status").textContent`
	shownReport  = `$("#report").checkVisibility()`
	// The report's candidates, each with its outcomes.
	candidates = `[...$("#report").contentDocument.querySelectorAll("section.card")].map(c =>
		[c.querySelector("h2").lastChild.textContent.trim(), ...[...c.querySelectorAll(".totals td.big")].map(td => +td.textContent.replace(/\D/g, ""))])`
)

// TestReplay: a log that is dropped or chosen is replayed by the policies of the cards, and its
// report is legible in the page, on its own and on paper.
func TestReplay(t *testing.T) {
	t.Parallel()
	p := start(t)
	b := open(t, p, everyCard("alice", "limit=5", "period=1m"))
	// Allowed, denied, keys denied.
	three := [][]any{{"Token bucket", 15, 4, 1}, {"Fixed window", 19, 0, 0}, {"Sliding window log", 15, 4, 1}}
	check := func(name string) {
		b.Eventually("the status", replayStatus, name+": 19 requests, 1 line that could not be read.")
		b.Wait("the report is there", shownReport)
		b.Eventually("what it says", candidates, three)
		b.Wait("who was denied", `$("#report").contentDocument.body.textContent.includes("192.0.2.7")`)
	}
	log := file(t, "access.log", accessLog())
	b.drop(log, "#drop")
	check("access.log")
	b.choose(file(t, "again.log", accessLog()))
	check("again.log")
	b.Eventually("the same file can be chosen again", `$("#file").value`, "")

	t.Log("the policies are those of the cards")
	b.Type(card(limiter.TokenBucket, "[name=burst]"), "10")
	b.drop(log, "#drop")
	three[0] = []any{"Token bucket", 19, 0, 0}
	check("access.log")

	t.Log("one candidate, and one that queues")
	for _, a := range []limiter.Algorithm{limiter.TokenBucket, limiter.FixedWindow, limiter.SlidingWindowLog} {
		b.Click(fmt.Sprintf("[name=candidate][value=%q]", a))
	}
	b.Click(`[name=candidate][value="leaky_bucket_queue"]`)
	b.choose(log)
	b.Wait("the report is there", shownReport)
	// At 59 s one passes and three wait for 12 s each; at 61 s there is room for one.
	b.Eventually("allowed, delayed, denied, keys denied", candidates, [][]any{{"Leaky bucket as a queue", 11, 4, 4, 1}})
	b.Wait("it is there to its end", `$("#report").contentDocument.readyState === "complete"`)
	inPage := Read[string](b, `$("#report").contentDocument.body.textContent`)
	response := must.OK(http.Get(Read[string](b, `$("#report-save").href`)))(t)
	defer response.Body.Close()
	if is := response.Header.Get("Content-Disposition"); !strings.HasPrefix(is, "attachment") {
		t.Errorf("the report to save is sent with Content-Disposition %q", is)
	}

	t.Log("the report on its own")
	report := Open(t, chromium, Read[string](b, `$("#report-open").href`))
	if text := Read[string](report, `document.body.textContent`); text != inPage {
		t.Errorf("on its own the report says %s, in the frame %s", text, inPage)
	}
	report.legible(20)
	report.fits("the report", `[]`, widths...)

	t.Log("on paper it is dark on white, and complete")
	must.OK(chromedp.Call(report.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Media: "print", Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}},
	}))(t)
	report.Do("as wide as a sheet", chromedp.EmulateViewport(720, 1000))
	report.Wait("it is so", `matchMedia("print").matches && innerWidth === 720`)
	if is := Read[float64](report, contrasts+".back"); is != 1 {
		t.Errorf("the paper's luminance is %v", is)
	}
	for _, f := range Read[[]string](report, contrasts+".failing") {
		t.Error(f)
	}
	if n := Read[[]string](report, `$$("body *:not(svg, svg *, .unseen, .unseen *)").filter(e => e.checkVisibility() && (getComputedStyle(e).overflowX !== "visible"
		|| e.getBoundingClientRect().right > innerWidth)).map(e => e.localName + "." + e.className)`); len(n) > 0 {
		t.Errorf("paper does not scroll, and would not show all of %q", n)
	}
	if Read[bool](report, `$$("summary").some(e => e.checkVisibility())`) {
		t.Error("the details are closed on paper")
	}
	pdf := Do(report, "print", chromedp.PrintToPDF())
	if pages := len(regexp.MustCompile(`/Type\s*/Page\b`).FindAll(pdf, -1)); pages < 1 || pages > 3 || len(pdf) < 10<<10 || len(pdf) > 1<<20 {
		t.Errorf("%d pages in %d bytes", pages, len(pdf))
	}
}

// TestReplayAgain drops logs faster than they can be replayed: the last one counts.
func TestReplayAgain(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), everyCard("alice", "limit=5", "period=1m"))
	long := file(t, "long.log", bytes.Repeat(accessLog(), 5_000))
	b.Run("count what is sent", `
		window.sent = 0
		const original = fetch
		window.fetch = (...a) => { sent++; return original(...a) }`)
	for n := range 3 {
		b.drop(long, "#drop")
		b.Eventually("it is being sent", "sent", n+1) // it is parsed before, and abandoned if another comes
	}
	b.drop(file(t, "access.log", accessLog()), "#drop")
	b.Eventually("the status", replayStatus, "access.log: 19 requests, 1 line that could not be read.")
	b.Wait("the report is there", shownReport)
	if n := b.Requests("POST /api/replay"); n != 4 {
		t.Errorf("%d logs were sent, not 4", n)
	}
}

// TestReplayRefused: what cannot be replayed gets a clear message.
func TestReplayRefused(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), everyCard("alice", "limit=5", "period=1m"))
	b.Tolerate("status of 422") // the browser's own words for such an answer
	b.Tolerate("status of 400")
	good := file(t, "access.log", accessLog())
	b.drop(good, "#drop")
	b.Wait("a report is there", shownReport)
	b.drop(file(t, "poem.txt", []byte("These are lines,\nbut none\nof them a request's.\n")), "#drop")
	b.Wait("a clear message", replayStatus+`.startsWith("poem.txt: none of its 3 lines is from an access log")`)
	b.Wait("no report", `!`+shownReport+` && !$("#report-open").checkVisibility()`)

	t.Log("what is no file, or more than one")
	folder := t.TempDir()
	b.drop(folder, "#drop")
	b.Eventually("a folder", replayStatus, filepath.Base(folder)+": cannot be read: choose a file that you may read, not a folder.")
	b.dropData("drop a text", "#drop", &input.DragData{Items: []*input.DragDataItem{{MimeType: "text/plain", Data: "a log"}}, Files: []string{}, DragOperationsMask: 1})
	b.Eventually("a text", replayStatus, "That is not a file: drop one access log.")
	b.dropData("drop two files", "#drop", &input.DragData{Items: []*input.DragDataItem{}, Files: []string{good, good}, DragOperationsMask: 1})
	b.Eventually("two files", replayStatus, "These are several files: drop one access log.")

	b.Type(card(limiter.TokenBucket, "[name=period]"), "soon")
	b.drop(good, "#drop")
	b.Wait("a policy that is none: a clear message", replayStatus+`.includes("Period")`)
	b.Type(card(limiter.TokenBucket, "[name=period]"), "1m")
	for _, a := range []limiter.Algorithm{limiter.TokenBucket, limiter.FixedWindow, limiter.SlidingWindowLog} {
		b.Click(fmt.Sprintf("[name=candidate][value=%q]", a))
	}
	b.drop(good, "#drop")
	b.Wait("no policy: a clear message", replayStatus+`.includes("Choose a policy")`)
	for _, a := range limiter.Algorithms()[:3] {
		b.Click(fmt.Sprintf("[name=candidate][value=%q]", a))
	}
	b.Eventually("no fourth policy", `$$("[name=candidate]").map(e => e.disabled)`, []bool{false, false, false, true, true, true, true})
	b.drop(good, "#drop")
	b.Wait("the report is there", shownReport)
	b.Eventually("three candidates", candidates+".length", 3)

	// The browser would open a file that the page does not accept.
	b.Run("look for files that are not accepted", `for (const kind of ["dragover", "drop"]) addEventListener(kind, e => window["taken_" + kind] = e.defaultPrevented)`)
	b.drop(good, "header")
	b.Eventually("a file that misses its place is taken, too", "[taken_dragover, taken_drop]", []bool{true, true})
}
