// Screenshots takes the pictures of the playground, of a replay's report and of the
// dashboard in docs/, on a throwaway PostgreSQL:
//
//	go run ./screenshots DIRECTORY [dashboard|playground]
//
// With the word dashboard it takes only those of the dashboard, which need no database; with
// playground all others.
package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard/sample"
	"github.com/pglimit/pglimit/cmd/pglimit/test/browser"
	"github.com/pglimit/pglimit/internal/repository"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/pglimittest"
)

func main() {
	log.SetFlags(0)
	only := ""
	if len(os.Args) == 3 {
		only = os.Args[2]
	}
	if len(os.Args) < 2 || len(os.Args) > 3 || !slices.Contains([]string{"", "dashboard", "playground"}, only) {
		log.Fatal("usage: screenshots DIRECTORY [dashboard|playground]")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1], only); err != nil {
		log.Fatalf("screenshots: %v", err)
	}
}

func run(ctx context.Context, to, only string) (err error) {
	if only != "playground" {
		if err := dashboards(ctx, to); err != nil || only != "" {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "pglimit-screenshots-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	command, err := repository.BuildCommand(dir)
	if err != nil {
		return err
	}
	server, err := pglimittest.Start(ctx, log.Printf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	migrated, err := server.Template(ctx, "screenshots", migrations.Up)
	if err != nil {
		return err
	}
	chromium, closeChromium, err := browser.Launch(ctx)
	if err != nil {
		return err
	}
	defer closeChromium()
	return (&photographer{to: to}).work(func(p *photographer) {
		playground := browser.Start(p, command, migrated.New(p))
		p.scene(browser.Open(p, chromium, playground.URL))
		p.report(browser.Open(p, chromium, playground.URL), filepath.Join(dir, "access.log"))
	})
}

// dashboards takes the pictures of the dashboard.
func dashboards(ctx context.Context, to string) error {
	chromium, closeChromium, err := browser.Launch(ctx)
	if err != nil {
		return err
	}
	defer closeChromium()
	return (&photographer{to: to}).work(func(p *photographer) {
		p.dashboard(func(url string) *browser.Tab { return browser.Open(p, chromium, url) })
	})
}

// scene sends bursts around the edge of the fixed window, to all cards. Five jobs want three slots,
// one of them dies, and the units of a gift are spent before those that were bought.
func (p *photographer) scene(b *browser.Tab) {
	b.Wait("connected", `$("#status").textContent === "connected"`)
	p.size(b, 1280, 1)
	b.Run("traffic", `$("#traffic").value = "edge"; $("#traffic").dispatchEvent(new Event("input"))`)
	b.Wait("both bursts", `+$("#card-fixed_window .allowed[data-count]").dataset.count >= 20 && (window.seen ??= Date.now())`)
	b.Wait("a while", `Date.now() > seen + 4000`)
	b.Run("jobs and lots", `
		const click = async selector => { $(selector).click(); await new Promise(done => setTimeout(done, 300)) }
		for (const selector of [...Array(5).fill("#slots [data-post]"), "#slots .die", "#balance [data-body*=bought]", "#balance [data-body*=gift]", "#balance .spend"]) await click(selector)`)
	b.Wait("a lot is spent", `$("#balance [data-is=spent]").textContent === "10"`)
	for _, scheme := range []string{"light", "dark"} {
		p.size(b, 1280, 1)
		p.shoot(b, scheme, "playground-wide-"+scheme)
		p.size(b, 390, 2)
		p.shoot(b, scheme, "playground-narrow-"+scheme)
	}
}

// size sets the window's width. Its height shows all cards, or two in a narrow window, where
// they are one above the other.
func (p *photographer) size(b *browser.Tab, width int64, scale float64) {
	b.Do(fmt.Sprintf("a window of %d px", width), chromedp.EmulateViewport(width, 900, chromedp.EmulateScale(scale)))
	last := "#balance"
	if width < 768 {
		last = "article:nth-of-type(2)"
	}
	height := browser.Read[int64](b, fmt.Sprintf(`Math.ceil($(%q).getBoundingClientRect().bottom + scrollY) + 16`, last))
	b.Do("its height", chromedp.EmulateViewport(width, height, chromedp.EmulateScale(scale)))
}

// shoot takes a picture of the window.
func (p *photographer) shoot(b *browser.Tab, scheme, name string) {
	b.Media("prefers-color-scheme", scheme)
	b.Run("it is drawn again", `for (let n = 0; n < 10; n++) await new Promise(requestAnimationFrame)`)
	image := browser.Do(b, name, chromedp.CaptureScreenshot())
	path := filepath.Join(p.to, name+".png")
	if err := os.WriteFile(path, image, 0o644); err != nil {
		p.Fatalf("%v", err)
	}
	p.Logf("%s: %d kB", path, len(image)>>10)
}

// report replays a log by the policies of three cards.
func (p *photographer) report(b *browser.Tab, path string) {
	if err := os.WriteFile(path, accessLog(), 0o600); err != nil {
		p.Fatalf("%v", err)
	}
	b.Wait("connected", `$("#status").textContent === "connected"`)
	b.Do("choose a log", chromedp.SetUploadFiles(chromedp.ID("file"), []string{path}))
	b.Wait("the report is there", `$("#report").checkVisibility()`)
	b.Do("open it", chromedp.Navigate(browser.Read[string](b, `$("#report-open").href`)))
	b.Do("a window of 1440 px", chromedp.EmulateViewport(1440, 1000))
	height := browser.Read[int64](b, `Math.ceil(document.body.getBoundingClientRect().bottom)`)
	b.Do("its height", chromedp.EmulateViewport(1440, height))
	p.shoot(b, "light", "replay-report")
}

// accessLog is half an hour of a web server: visitors, a crawler, and a client that sends
// all at once.
func accessLog() []byte {
	const seconds = 30 * 60
	began := time.Date(2026, 5, 17, 10, 0, 0, 0, time.UTC)
	random := rand.New(rand.NewPCG(1, 2))
	at := make([][]string, seconds) // the clients of each second
	for _, network := range []string{"192.0.2.", "198.51.100.", "203.0.113."} {
		for host := range 20 {
			client := fmt.Sprint(network, 10+host)
			for second := random.IntN(200); second < seconds; second += 5 + random.IntN(120) {
				for range 1 + random.IntN(6) { // a page and its resources
					at[second] = append(at[second], client)
				}
			}
		}
	}
	for second := 400; second < 1100; second++ {
		at[second] = append(at[second], "198.51.100.200", "198.51.100.200")
	}
	for second := 1200; second < 1700; second += 30 {
		for range 25 {
			at[second] = append(at[second], "203.0.113.99")
		}
	}
	var b bytes.Buffer
	for second, clients := range at {
		for _, client := range clients {
			fmt.Fprintf(&b, "%s - - [%s] \"GET / HTTP/1.1\" 200 5120\n", client, began.Add(time.Duration(second)*time.Second).Format("02/Jan/2006:15:04:05 -0700"))
		}
	}
	return b.Bytes()
}

// photographer implements T outside tests: it collects failures, and cleans up.
type photographer struct {
	to       string // the directory of the pictures
	cleanups []func()
	errs     []error
}

// stopped is the value with which Fatalf panics.
type stopped struct{}

// work runs f and the cleanups, and returns the failures.
func (p *photographer) work(f func(*photographer)) error {
	p.attempt(func() { f(p) })
	for _, cleanup := range slices.Backward(p.cleanups) {
		p.attempt(cleanup)
	}
	return errors.Join(p.errs...)
}

func (p *photographer) attempt(f func()) {
	defer func() {
		if r := recover(); r != nil && r != (stopped{}) {
			panic(r)
		}
	}()
	f()
}

func (p *photographer) Helper()                         {}
func (p *photographer) Name() string                    { return "screenshots" }
func (p *photographer) Failed() bool                    { return len(p.errs) > 0 }
func (p *photographer) Cleanup(f func())                { p.cleanups = append(p.cleanups, f) }
func (p *photographer) Logf(format string, args ...any) { log.Printf(format, args...) }

func (p *photographer) Errorf(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, args...))
}

func (p *photographer) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	panic(stopped{})
}

// dashboard takes the pictures of the dashboard over a sample.
func (p *photographer) dashboard(open func(url string) *browser.Tab) {
	d := browser.StartDashboard(p, sample.New(false), time.Hour)
	b := open(d.URL + "/#token=" + d.Token)
	// Otherwise each picture is another.
	b.Run("stop the clock", `const f = Date.prototype.toLocaleTimeString; Date.prototype.toLocaleTimeString = function (l, o) { return o ? f.call(this, l, o) : "14:25:00" }`)
	key := "#/key/" + base64.RawURLEncoding.EncodeToString([]byte("203.0.113.99"))
	for _, page := range []struct {
		name, fragment string
		width          int64
		scale          float64
		last           string // the last element of the picture
	}{
		{"wide", "#/", 1280, 1, "main"},
		{"narrow", "#/", 390, 2, ".panel:nth-of-type(2)"},
		{"key", key, 1280, 1, ".panel:last-of-type"},
	} {
		b.Do(fmt.Sprintf("a window of %d px", page.width), chromedp.EmulateViewport(page.width, 900, chromedp.EmulateScale(page.scale)))
		b.Run("go to "+page.fragment, fmt.Sprintf(`document.title = "left"; location.hash = "#/nowhere"; location.hash = %q`, page.fragment))
		b.Wait("it is shown", `document.title !== "left" && $$("main .panel").length > 1 && $("#status").textContent.includes("14:25:00")`)
		height := browser.Read[int64](b, fmt.Sprintf(`Math.ceil(($(%q) === $("main") ? $(".panels") : $$(%q).at(-1)).getBoundingClientRect().bottom + scrollY) + 16`, page.last, page.last))
		b.Do("its height", chromedp.EmulateViewport(page.width, height, chromedp.EmulateScale(page.scale)))
		for _, scheme := range []string{"light", "dark"} {
			p.shoot(b, scheme, "dashboard-"+page.name+"-"+scheme)
		}
	}
}
