package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/pglimit/pglimit/browser"
	"github.com/pglimit/pglimit/internal/dashboard/sample"
)

// dashboard takes the pictures of the dashboard over a sample.
func (p *photographer) dashboard(open func(url string) *browser.Tab) {
	d := browser.StartDashboard(p, sample.New(false), time.Hour, io.Discard)
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
