package browser

import (
	"encoding/json"
	"fmt"
	"go/format"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	chrome "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/chromedp"

	"github.com/pglimit/pglimit/limiter"
)

func TestControls(t *testing.T) {
	t.Parallel()
	p := start(t)
	b := open(t, p, five("alice"))
	headers := func(a limiter.Algorithm) string { return text(card(a, ".headers")) }
	fresh := func(key string) { b.Type("#key", key) }

	b.Wait("the database is named", text("#database")+`.startsWith("PostgreSQL ")`)
	buckets := []limiter.Algorithm{limiter.LeakyBucket, limiter.LeakyBucketQueue, limiter.TokenBucket, limiter.GCRA}
	for field, want := range map[string][]limiter.Algorithm{
		"limit": limiter.Algorithms(), "burst": buckets, "tick": {limiter.LeakyBucket}, "aligned": {limiter.FixedWindow},
	} {
		b.Eventually("the cards with "+field, fmt.Sprintf(`$$("article.card [name=%s]").map(e => e.closest("article").id.slice(5))`, field), want)
	}

	t.Log("cost")
	for _, a := range limiter.Algorithms() {
		b.Type(card(a, "[name=cost]"), "3")
		b.Click(card(a, ".send"))
		b.Eventually(string(a)+": remaining", text(card(a, ".remaining")), "2")
		b.Click(card(a, ".send"))
		b.Eventually(string(a)+": no more for another 3", counts(a), []int{1, 0, 1})
		b.Type(card(a, "[name=cost]"), "2")
		b.Click(card(a, ".send"))
		b.Eventually(string(a)+": but for 2", text(card(a, ".remaining")), "0")
		b.Type(card(a, "[name=cost]"), "1")
	}

	t.Log("burst")
	fresh("burst")
	for _, a := range buckets {
		b.Type(card(a, "[name=burst]"), "8")
		b.Click(card(a, ".burst-10"))
		want := []int{8, 0, 2}
		if a == limiter.LeakyBucketQueue {
			want = []int{1, 7, 2}
		}
		b.Eventually(string(a)+": allowed, delayed, denied", counts(a), want)
	}

	t.Log("tick: 5 units leak at once, after the period")
	fresh("tick")
	b.Type(card(limiter.LeakyBucket, "[name=burst]"), "")
	b.Type(card(limiter.LeakyBucket, "[name=tick]"), "100h")
	b.Click(card(limiter.LeakyBucket, ".burst-10"))
	b.Eventually("allowed, delayed, denied", counts(limiter.LeakyBucket), []int{5, 0, 5})
	b.Click(card(limiter.LeakyBucket, ".send"))
	b.Eventually("denied", counts(limiter.LeakyBucket), []int{5, 0, 6})
	// Without a tick the next unit would arrive after 20 hours.
	b.Wait("retry after more than those", `+`+headers(limiter.LeakyBucket)+`.match(/^retry-after: (\d+)$/im)[1] > 20 * 3600`)

	t.Log("aligned: a window of 10,000 hours does not start at the first hit")
	fresh("aligned")
	window := func() int {
		b.Click(card(limiter.FixedWindow, ".send"))
		b.Eventually("allowed", counts(limiter.FixedWindow), []int{1, 0, 0})
		var t int
		fmt.Sscan(regexp.MustCompile(`t=(\d+)`).FindStringSubmatch(Read[string](b, headers(limiter.FixedWindow)))[1], &t)
		return t
	}
	b.Type(card(limiter.FixedWindow, "[name=period]"), "10000h")
	if is := window(); is != 36_000_000 {
		t.Errorf("not aligned, it restarts in %d s", is)
	}
	b.Click("#reset")
	b.Eventually("reset", counts(limiter.FixedWindow), []int{0, 0, 0})
	b.Click(card(limiter.FixedWindow, "[name=aligned]"))
	if is := window(); is >= 36_000_000 {
		t.Errorf("aligned, it restarts in %d s", is)
	}

	t.Log("block for")
	fresh("block")
	b.Type(card(limiter.GCRA, "[name=burst]"), "")
	b.Type(card(limiter.GCRA, "[name=block_for]"), "900h")
	b.Click(card(limiter.GCRA, ".burst-10"))
	b.Eventually("allowed, delayed, denied", counts(limiter.GCRA), []int{5, 0, 5})
	b.Click(card(limiter.GCRA, ".send"))
	b.Eventually("denied", counts(limiter.GCRA), []int{5, 0, 6})
	b.Wait("retry after the block", `+`+headers(limiter.GCRA)+`.match(/^retry-after: (\d+)$/im)[1] > 800 * 3600`)

	t.Log("a calendar takes the period's place")
	fresh("calendar")
	period, zone := card(limiter.FixedWindow, "[name=period]"), card(limiter.FixedWindow, "[name=time_zone]")
	b.Wait("no time zone without a calendar", fmt.Sprintf("$(%q).disabled && !$(%q).disabled", zone, period))
	b.Click(card(limiter.FixedWindow, "[name=aligned]"))
	b.Do("choose days", chromedp.SendKeys(chromedp.CSS(card(limiter.FixedWindow, "[name=calendar]")), "day"))
	b.Wait("no period with a calendar", fmt.Sprintf("!$(%q).disabled && $(%q).disabled", zone, period))
	b.Type(zone, "Europe/Vienna")
	b.Click(card(limiter.FixedWindow, ".send"))
	b.Eventually("allowed", counts(limiter.FixedWindow), []int{1, 0, 0})
	b.Wait("it is in the code", text(card(limiter.FixedWindow, ".go"))+`.includes("Europe/Vienna")`)
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), five("alice"))
	b.Tolerate("status of 400") // the browser's own words for such an answer
	for _, c := range []struct {
		a                     limiter.Algorithm
		control, wrong, right string
	}{
		{limiter.TokenBucket, "limit", "-1", "5"},
		{limiter.TokenBucket, "limit", "", "5"},
		{limiter.TokenBucket, "burst", "-2", ""},
		{limiter.LeakyBucket, "tick", "soon", ""},
		{limiter.FixedWindow, "period", "fast", "100h"},
		{limiter.SlidingWindowLog, "period", "", "100h"},
		{limiter.SlidingWindowLog, "period", "-1s", "100h"},
		{limiter.GCRA, "cost", "0", "1"},
		{limiter.GCRA, "cost", "-3", "1"},
		{limiter.GCRA, "cost", "", "1"},
		{limiter.LeakyBucketQueue, "block_for", "1", ""},
	} {
		control := card(c.a, "[name="+c.control+"]")
		b.Type(control, c.wrong)
		b.Click(card(c.a, ".send"))
		b.Wait(fmt.Sprintf("%s: a message about %s, by its label", c.a, c.control),
			fmt.Sprintf(`%s.startsWith($(%q).labels[0].textContent + " ")`, text(card(c.a, ".problem")), control))
		t.Logf("%s: %s", c.a, Read[string](b, text(card(c.a, ".problem"))))
		b.Wait("the control is marked", fmt.Sprintf(`$(%q).getAttribute("aria-invalid") === "true"`, control))
		b.Wait("only that card has a problem", `$$(".card .problem").filter(p => p.textContent).length === 1 && $$("[aria-invalid=true]").length === 1`)
		b.Click("#burst-all")
		b.Wait("a message for all cards, too", fmt.Sprintf(`%s.includes($(%q).textContent)`, text("#problem"), card(c.a, "h2")))
		b.Type(control, c.right)
		b.Wait("the right value takes all messages away", `$$(".problem").every(p => !p.textContent) && !$("[aria-invalid=true]")`)
	}
	for _, a := range limiter.Algorithms() {
		b.Eventually(string(a)+": nothing was sent", counts(a), []int{0, 0, 0})
	}
	b.Click("#send-all")
	for _, a := range limiter.Algorithms() {
		b.Eventually(string(a)+": now it is", counts(a), []int{1, 0, 0})
	}
}

// clipboard guards the clipboard, which all tabs share.
var clipboard sync.Mutex

// holdClipboard lets only this tab use the clipboard until the test ends.
func holdClipboard(b *Tab, t *testing.T) {
	clipboard.Lock()
	t.Cleanup(clipboard.Unlock)
	c := chromedp.FromContext(b.ctx)
	for _, name := range []string{"clipboard-read", "clipboard-write"} {
		if _, err := chromedp.Call(b.ctx, chrome.SetPermission, chrome.SetPermissionParams{
			Permission: &chrome.PermissionDescriptor{Name: name}, Setting: chrome.PermissionSettingGranted, BrowserContextID: c.BrowserContextID,
		}); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	copied   = `await navigator.clipboard.readText()`
	controls = `$$("#key, .controls [name]").map(e => (e.closest("article")?.id ?? "page") + " " + (e.name || e.id) + ": " + (e.type === "checkbox" ? e.checked : e.value))`
)

func TestLink(t *testing.T) {
	t.Parallel()
	p := start(t)
	b := open(t, p, "")
	holdClipboard(b, t)
	defaults := Read[[]string](b, controls)
	b.Type("#key", "bob & söhne=#1")
	b.Type(card(limiter.TokenBucket, "[name=limit]"), "7")
	b.Type(card(limiter.TokenBucket, "[name=burst]"), "9.5")
	b.Type(card(limiter.LeakyBucket, "[name=tick]"), "2s")
	b.Type(card(limiter.SlidingWindowLog, "[name=period]"), "1m30s")
	b.Type(card(limiter.GCRA, "[name=cost]"), "2")
	b.Type(card(limiter.GCRA, "[name=block_for]"), "5s")
	b.Click(card(limiter.FixedWindow, "[name=aligned]"))
	set := Read[[]string](b, controls)
	b.Click("#link")
	b.Wait("the live region says it", text("#said")+`.includes("copied")`)
	link := Read[string](b, copied)
	t.Logf("the link: %s", strings.TrimPrefix(link, p.URL))
	if is := Read[string](b, "location.href"); link != is {
		t.Errorf("copied is %s, the address is %s", link, is)
	}
	other := Open(t, chromium, link)
	other.connected()
	other.Eventually("the set-up in another tab", controls, set)
	b.Run("a link without a set-up is followed", `location.hash = ""`)
	b.Eventually("the set-up", controls, defaults)
	other.Click(card(limiter.GCRA, ".send"))
	other.Wait("it counts", text(card(limiter.GCRA, ".headers"))+`.includes(";r=8;")`)
}

// TestCopy: what is copied works, and a button that says so returns to its label.
func TestCopy(t *testing.T) {
	t.Parallel()
	p := start(t)
	b := open(t, p, five("alice"))
	holdClipboard(b, t)
	for _, a := range limiter.Algorithms() {
		b.Click(card(a, "summary"))
		take := func(form string) string {
			b.Click(card(a, "[data-copy="+form+"]"))
			b.Eventually("the live region says it", text("#said"), "Copied "+form+".")
			is := Read[string](b, copied)
			t.Logf("%s", is)
			if shown := Read[string](b, text(card(a, "pre."+form))); is != shown || is == "" {
				t.Errorf("%s: %q is copied, %q is shown", a, is, shown)
			}
			b.Run("empty the clipboard", `await navigator.clipboard.writeText("")`)
			return is
		}
		if _, err := format.Source([]byte(take("go"))); err != nil {
			t.Errorf("%s: this is no Go: %v", a, err)
		}

		// The copied command is what the card sends: it is counted there.
		out, err := shell(p, take("command")+" --json").Output()
		var r struct{ Remaining float64 }
		if json.Unmarshal(out, &r) != nil || r.Remaining != 4 {
			t.Errorf("%s: the command gives %v: %s", a, err, out)
		}
		b.Click("#reset") // otherwise a queue would make curl wait
		b.Eventually("the live region says it", text("#said"), "All counters are reset.")
		b.Eventually("reset", counts(a), []int{0, 0, 0})
		address := regexp.MustCompile(`^curl -i '(http://[^']+)'$`).FindStringSubmatch(strings.TrimSpace(take("curl")))
		if address == nil {
			t.Errorf("%s: this is no curl of a URL", a)
			continue
		}
		if answer := get(t, p, strings.TrimPrefix(address[1], p.URL)); !strings.HasPrefix(answer, "HTTP/1.1 200 OK\n") {
			t.Errorf("%s: curl would get %s", a, answer)
		}
		b.Eventually(string(a)+": curl's request is on the card", counts(a), []int{1, 0, 0})
	}
	if response, err := http.Get(p.URL + "/limited/none?key=a"); err != nil || response.StatusCode == http.StatusOK {
		t.Errorf("an algorithm that does not exist: %v, %v", response, err)
	}

	b.Run("keep what is to come", `
		const original = setTimeout
		window.later = []
		window.setTimeout = (f, ms) => ms === 1500 ? later.push(f) : original(f, ms)`)
	button := card(limiter.GCRA, "[data-copy=go]")
	for n := range 2 {
		b.Click(button)
		b.Eventually("it is copied", "later.length", n+1)
		b.Eventually("it says so", text(button), "Copied")
	}
	b.Run("later", `for (const f of later) f()`)
	b.Eventually("what it is for", text(button), "Copy Go")
}

// shell runs a line in a shell, with the built command and the playground's
// database.
func shell(p *Playground, line string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", line)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+p.database, "PATH="+filepath.Dir(p.command)+string(os.PathListSeparator)+os.Getenv("PATH"))
	return cmd
}
