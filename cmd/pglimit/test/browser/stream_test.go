package browser

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/pglimit/pglimit/limiter"
)

// hide makes the page hidden or visible, or both in turn: a browser without a window
// considers all its tabs visible.
func (b *Tab) hide(yes ...bool) {
	b.Helper()
	b.Run(fmt.Sprintf("hidden: %v", yes), fmt.Sprintf(`
		for (const value of [%s]) {
			Object.defineProperty(document, "hidden", {value, configurable: true})
			document.dispatchEvent(new Event("visibilitychange"))
		}`, strings.ReplaceAll(strings.Trim(fmt.Sprint(yes), "[]"), " ", ", ")))
}

// TestManyTabs opens more tabs than a browser has connections for one host.
func TestManyTabs(t *testing.T) {
	t.Parallel()
	p := start(t)
	first := open(t, p, five("alice"))
	tabs := []*Tab{first}
	another := func() *Tab {
		b := OpenBeside(t, first, p.URL+"/#"+five("alice"))
		b.connected()
		return b
	}
	for len(tabs) < 5 {
		tabs = append(tabs, another())
	}
	for _, b := range tabs {
		b.hide(true)
	}
	for _, b := range tabs {
		b.Eventually("the status", `$("#status").dataset.state`, "paused")
	}
	another()
	last := another()
	last.Click("#burst-all")
	for _, a := range limiter.Algorithms() {
		last.Eventually(string(a)+": allowed, delayed, denied", counts(a), burstOfTen(a))
	}
	first.hide(false)
	first.connected()
	for _, a := range limiter.Algorithms() {
		first.Eventually(string(a)+": level", text(card(a, ".level")), "5")
	}
	first.hide(true, false) // at once: later it would pause
	first.Click("#send-all")
	first.Eventually("seen again in time, it goes on listening", counts(limiter.GCRA), []int{0, 0, 1})
	if n := first.Requests("GET /api/events"); n != 2 {
		t.Errorf("it opened %d streams, not one and another", n)
	}
}

// TestKeyIsText shows keys with characters that HTML and URLs escape, after one that is too
// long, of which the page says so.
func TestKeyIsText(t *testing.T) {
	t.Parallel()
	p := start(t)
	b := Open(t, chromium, p.URL+"/#key="+strings.Repeat("k", 257), first(keepSource))
	b.Tolerate("status of 400")
	b.Eventually("the status", text("#status"), "connection lost: key is 257 bytes long: 256 at most")
	for _, key := range []string{`<img src=x onerror="document.title='oops'">'`, "tab\tand \u0001", strings.Repeat("ä€😀", 28), "-", "--help"} {
		b.follow(five(key))
		b.connected()
		b.Click("#send-all")
		for _, a := range limiter.Algorithms() {
			b.Eventually(string(a)+": allowed", counts(a), []int{1, 0, 0})
		}
		command := text(card(limiter.SlidingWindowLog, ".command"))
		b.Wait("the command is there", command)
		out, err := shell(p, strings.Replace(Read[string](b, command), "pglimit allow", "pglimit allow --json", 1)).CombinedOutput()
		if err != nil || !regexp.MustCompile(`"remaining": ?3,`).Match(out) {
			t.Errorf("%q: the command gives %v: %s", key, err, out)
		}
		if title := Read[string](b, "document.title"); title != "pglimit playground" {
			t.Errorf("%q: the title is %q", key, title)
		}
	}
}

// TestClockSet sets the browser's clock while it receives events.
func TestClockSet(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), five("alice"))
	a := limiter.GCRA
	b.Do("scroll to the plot", scrollTo(card(a, "canvas")))
	for _, hours := range []int{1, -1} {
		b.Run(fmt.Sprintf("the clock is set by %d h", hours), fmt.Sprintf(`const real = Date.now; Date.now = () => real() + %d * 3600_000`, hours))
		b.Click("#reset")
		b.Eventually("the live region says it", text("#said"), "All counters are reset.")
		b.Wait("the plot is empty", "!"+hasColour(a, "denied"))
		b.Click(card(a, ".burst-10"))
		b.Eventually("allowed, delayed, denied", counts(a), burstOfTen(a))
		b.Wait("its marks are in the plot", hasColour(a, "denied"))
	}
}

// proxy forwards to a database, and can be cut.
type proxy struct {
	listener    net.Listener
	network, to string

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

// behind returns a database's address through a proxy.
func behind(t *testing.T, database string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, network: "tcp", to: u.Host}
	query := u.Query()
	if u.Host == "" { // a socket
		p.network, p.to = "unix", query.Get("host")+"/.s.PGSQL."+query.Get("port")
		query.Del("host")
		query.Del("port")
		u.RawQuery = query.Encode()
	}
	t.Cleanup(func() { l.Close(); p.set(true) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	u.Host = l.Addr().String()
	return p, u.String()
}

func (p *proxy) serve(c net.Conn) {
	defer c.Close()
	database, err := net.Dial(p.network, p.to)
	if err != nil {
		return
	}
	defer database.Close()
	p.mu.Lock()
	cut := p.cut
	p.conns = append(p.conns, c, database)
	p.mu.Unlock()
	if cut {
		return
	}
	go func() {
		_, _ = io.Copy(database, c)
		database.Close()
	}()
	_, _ = io.Copy(c, database)
}

func (p *proxy) set(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// TestDatabaseGone: the page reports the outage until the database is back, also if it was
// opened during the outage.
func TestDatabaseGone(t *testing.T) {
	t.Parallel()
	network, database := behind(t, migrated.New(t))
	p := Start(t, command(t), database)
	b := open(t, p, five("alice"))
	b.Tolerate("status of 503")
	a := limiter.GCRA
	b.Click("#burst-all")
	b.Eventually("allowed, delayed, denied", counts(a), burstOfTen(a))
	network.set(true)
	b.Wait("a message", text("#problem")+`.includes("database unavailable")`)
	b.Click(card(a, ".send"))
	b.Wait("one on a card", text(card(a, ".problem"))+`.includes("database unavailable")`)
	late := open(t, p, five("bob"))
	late.Tolerate("status of 503")
	late.Wait("the code is there", text(card(a, ".go")))
	late.Wait("a message", text("#problem")+`.includes("database unavailable")`)
	network.set(false)
	b.Eventually("no message any more", text("#problem"), "")
	b.Eventually("allowed, delayed, denied", counts(a), burstOfTen(a))
	late.Click("#send-all")
	late.Eventually("allowed", counts(a), []int{1, 0, 0})
	late.Eventually("no message any more", text("#problem"), "")
}

// TestLevelUnknown: a plot shows no level for the time in which none was received.
func TestLevelUnknown(t *testing.T) {
	t.Parallel()
	network, database := behind(t, migrated.New(t))
	b := open(t, Start(t, command(t), database), five("alice"))
	a := limiter.GCRA
	b.Do("scroll to the plot", scrollTo(card(a, "canvas")))
	b.Run("keep what is drawn", `
		const {lineTo, clearRect} = CanvasRenderingContext2D.prototype, plot = $("#card-gcra canvas")
		let right = window.drawn = 0 // where the curve ends
		CanvasRenderingContext2D.prototype.lineTo = function (x, y) { if (this.canvas === plot && this.lineWidth === 2) right = Math.max(right, x); return lineTo.call(this, x, y) }
		CanvasRenderingContext2D.prototype.clearRect = function (...a) { if (this.canvas === plot) { drawn = right; right = 0 } return clearRect.apply(this, a) }`)
	b.Click(card(a, ".burst-10"))
	edge := `$("#card-gcra canvas").getBoundingClientRect().width - 9`
	b.Wait("the curve goes on to now", "drawn > "+edge)
	network.set(true)
	b.Wait("a message", text("#problem")+`.includes("database unavailable")`)
	b.Wait("the curve ends before now", "drawn > 0 && drawn < "+edge)
}
