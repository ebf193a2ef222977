package browser

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/repository"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/pglimittest"
)

var (
	chromium context.Context
	binaries string                // directory of the built pglimit
	migrated *pglimittest.Template // has pglimit's tables
)

func TestMain(m *testing.M) {
	log.SetFlags(0)
	code, err := runTests(m)
	if err != nil {
		log.Printf("browser: %v", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "pglimit-browser-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binaries = dir
	server, err := pglimittest.Start(ctx, log.Printf)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if migrated, err = server.Template(ctx, "browser", migrations.Up); err != nil {
		return 1, err
	}
	var closeChromium func()
	if chromium, closeChromium, err = Launch(ctx); err != nil {
		return 1, err
	}
	defer closeChromium()
	return m.Run(), nil
}

// build builds the command, once for all tests. TestMain does not: go test caches results
// by the files that tests read, not TestMain.
var build = sync.OnceValues(func() (string, error) { return repository.BuildCommand(binaries) })

// command returns the path of the built command.
func command(t *testing.T) string {
	t.Helper()
	path := must.OK(build())(t)
	return path
}

// start starts a playground over a separate database.
func start(t *testing.T) *Playground {
	t.Helper()
	return Start(t, command(t), migrated.New(t))
}

// open opens the playground in a tab, with the settings of a link, and waits until it is
// connected.
func open(t *testing.T, p *Playground, link string, before ...chromedp.Action[chromedp.Void]) *Tab {
	t.Helper()
	b := Open(t, chromium, p.URL+"/#"+link, before...)
	b.connected()
	return b
}

func (b *Tab) connected() {
	b.Helper()
	b.Eventually("the status", `$("#status").textContent`, "connected")
}

// everyCard returns the settings of a link that gives each card these values.
func everyCard(key string, values ...string) string {
	link := url.Values{"key": {key}}
	for _, a := range limiter.Algorithms() {
		for _, v := range values {
			name, value, _ := strings.Cut(v, "=")
			link.Set(string(a)+"."+name, value)
		}
	}
	return link.Encode()
}

// five is settings under which five requests pass, and no more while a test runs.
func five(key string) string { return everyCard(key, "limit=5", "period=100h") }

// card selects what is on an algorithm's card.
func card(a limiter.Algorithm, selector string) string {
	return "#card-" + string(a) + " " + selector
}

// text is the expression of an element's text.
func text(selector string) string { return fmt.Sprintf("$(%q).textContent", selector) }

// counts is the expression of a card's counts: allowed, delayed, denied.
func counts(a limiter.Algorithm) string {
	return fmt.Sprintf(`["allowed", "delayed", "denied"].map(o => +$("#card-%s ." + o + "[data-count]").dataset.count)`, a)
}

// tally is the expression of the counts of all cards: allowed, delayed, denied.
const tally = `$$("article.card").map(c => ["allowed", "delayed", "denied"].map(o => +c.querySelector("." + o + "[data-count]").dataset.count))`

// everywhere is the expression of an element's text on all cards.
func everywhere(selector string) string {
	return fmt.Sprintf(`$$("article.card").map(c => c.querySelector(%q).textContent)`, selector)
}

// each returns a value for each card: queue is that of the queue.
func each[V any](value, queue V) (all []V) {
	for _, a := range limiter.Algorithms() {
		if a == limiter.LeakyBucketQueue {
			all = append(all, queue)
		} else {
			all = append(all, value)
		}
	}
	return all
}

// burstOfTen is the counts of all cards after ten requests when five pass.
var burstOfTen = each([]int{5, 0, 5}, []int{1, 4, 5})

// answered is the expression of whether all cards have counted ten requests of which five
// pass, or more if levels leak meanwhile.
const answered = tally + `.every(([allowed, delayed, denied]) => allowed + delayed >= 5 && allowed + delayed + denied === 10)`

// hasColour is the expression of whether a plot shows an outcome's colour, as the
// legend has it.
func hasColour(a limiter.Algorithm, outcome string) string {
	return fmt.Sprintf(`(() => {
		const legend = getComputedStyle($("#card-%[1]s .mark.%[2]s")).backgroundColor.match(/\d+/g).map(Number)
		const plot = $("#card-%[1]s canvas.plot")
		const copy = new OffscreenCanvas(plot.width, plot.height).getContext("2d", {willReadFrequently: true})
		copy.drawImage(plot, 0, 0)
		const pixels = copy.getImageData(0, 0, plot.width, plot.height).data
		for (let i = 0; i < pixels.length; i += 4)
			if (pixels[i+3] === 255 && legend.every((v, n) => Math.abs(v - pixels[i+n]) < 4)) return true
		return false
	})()`, a, outcome)
}
