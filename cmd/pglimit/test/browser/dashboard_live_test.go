package browser

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestDashboardLive: updates keep the focus, the selection, open details, what is typed and
// the place, even when rows change their order.
func TestDashboardLive(t *testing.T) {
	t.Parallel()
	o := operate(t, often)
	b := o.view(t, "#/keys?policy=login") // all rows stay, in another order
	next := func() {
		t.Helper()
		b.Run("what is there", `window.before = $("main tbody").textContent`)
		o.source.Turn()
		b.Wait("the next data", `$("main tbody").textContent !== before`)
	}
	const order = `$$("main tbody tr").map(r => r.dataset.id)`
	first := Read[[]string](b, order)
	b.Run("focus a link far down", `scrollTo(0, 1000); window.link = $$("main tbody tr")[20].querySelector("a"); link.focus({preventScroll: true})`)
	for range 3 {
		next()
		if !Read[bool](b, `document.activeElement === link && link.isConnected`) {
			t.Fatal("the focus is lost")
		}
	}
	if then := Read[[]string](b, order); fmt.Sprint(then) == fmt.Sprint(first) {
		t.Error("the order did not change, so the test shows nothing")
	}
	b.Run("select text", `const key = $$("main tbody .key").filter(k => k.textContent.startsWith("192"))[12]; window.selected = key.textContent; getSelection().selectAllChildren(key); document.activeElement.blur()`)
	next()
	b.Wait("it is selected", `getSelection().toString() === selected`)
	b.Run("type", `$("[name=prefix]").focus(); $("[name=prefix]").value = "k"; window.field = document.activeElement`)
	next()
	b.Wait("the field has its text and the focus", `document.activeElement === field && field.value === "k"`)

	b.visit("#/")
	b.Click("summary")
	b.Run("scroll", `scrollTo(0, 500); window.y = scrollY`)
	next()
	next()
	b.Wait("the details are open, and the place is kept", `$("details").open && scrollY === y`)
	b.visit("#/keys?policy=login")
	b.Run("hold the next request", `window.fetched ??= fetch; window.requests = 0; const gate = new Promise(open => window.goOn = open)
		window.fetch = (...a) => { requests++; return gate.then(() => fetched(...a)) }`)
	b.Eventually("requests in flight", `requests`, 1)
	b.Run("hide the page", `Object.defineProperty(document, "hidden", {get: () => true, configurable: true}); document.dispatchEvent(new Event("visibilitychange"))`)
	b.Run("a while", `goOn(); for (let i = 0; i < 50; i++) await fetched("/api/setup")`)
	b.Eventually("requests of a hidden page", `requests`, 1)
	b.Run("a visible one", `delete document.hidden; document.dispatchEvent(new Event("visibilitychange"))`)
	b.Wait("goes on", `requests > 4`)
}

// TestDashboardAway: while the database or the server does not answer, a banner says so, and
// the last data stay; then it goes.
func TestDashboardAway(t *testing.T) {
	t.Parallel()
	o := operate(t, often)
	b := o.view(t, "#/keys")
	b.Tolerate("status of 503")
	b.Tolerate("ERR_")
	b.Wait("no banner", `$("#banner").textContent === "" && $("#banner").clientHeight === 0`)
	away := func(what, want string) {
		t.Helper()
		b.Wait(what, text("#banner")+fmt.Sprintf(`.includes(%q) && $("#banner").clientHeight > 0 && $("#status").dataset.state === "lost"`, want))
		b.Wait("since when the data are", text("#banner")+`.match(/The data are those of \d\d:\d\d:\d\d/)`)
		b.Wait("the data stay", `$$("main tbody tr").length === 100`)
	}
	back := func() {
		t.Helper()
		b.Wait("the banner goes", `$("#banner").textContent === "" && $("#status").dataset.state === "connected"`)
	}
	o.source.Break(errors.New("pglimit: database unavailable: dial tcp: connection refused"))
	away("the database is away", "The database does not answer: database unavailable: dial tcp: connection refused.")
	b.Run("count what a screen reader hears", `window.requests = 0; window.fetched ??= fetch; window.fetch = (...a) => { requests++; return fetched(...a) }
		window.heard = 0; new MutationObserver(() => heard++).observe($("#banner"), {childList: true, characterData: true, subtree: true})`)
	b.Wait("the page tries again", `requests > 8`)
	b.Eventually("times that the banner is said again", `heard`, 0)
	o.source.Break(nil)
	back()
	b.Run("requests time out", `AbortSignal.timeout = () => AbortSignal.abort(new DOMException("", "TimeoutError"))`)
	away("the page says so", "The dashboard does not answer in time.")
	b.Run("no more", `AbortSignal.timeout = () => null`)
	back()
	o.Stop()
	away("the server is away", "Start it again with: pglimit dashboard")
	b.Run("another page meanwhile", `location.hash = "#/doctor"`)
	b.Wait("the banner is still there", `$("#banner").textContent`)
	o.Again()
	back()
	b.Wait("and the page", `$("main .list li")`)

	o.source.Break(errors.New("down"))
	late := Open(t, chromium, o.URL)
	late.Tolerate("status of 503")
	late.Wait("opened while the database is away", text("#banner")+`.includes("There are no data yet.")`)
	o.source.Break(nil)
	late.complete()
}

// TestDashboardDialog: a dialog that is cancelled does nothing to the next one, and what it had
// sent is shown. A change that fails is told, and nothing pretends that it was made.
func TestDashboardDialog(t *testing.T) {
	t.Parallel()
	o := operate(t, seldom)
	b := o.change(t, keyPage("203.0.113.99"))
	b.Tolerate("status of 503")
	b.Wait("blocked", `$("main .tag.bad").textContent.includes("in 14 min")`)
	b.Run("open, cancel and open again, before the page has its event of the first", `const block = $("[data-do=block][data-policy]"); block.click(); $("#ask").close(); block.click()`)
	b.Click("#ask-yes")
	b.Wait("blocked as the second says", `!$("#ask").open && $("main .tag.bad").textContent.includes("in 10 min")`)
	b.Run("cancel what is sent", `$("[data-do=block][data-policy]").click(); $("#ask [name=for]").value = "1h"; $("#ask-yes").click(); $("#ask").close()`)
	b.Wait("blocked all the same", `$("main .tag.bad").textContent.includes("in 1 h")`)
	o.source.Break(errors.New("it is down"))
	b.Run("cancel what is sent and fails", `$("[data-do=reset]").click(); $("#ask-yes").click(); $("#ask").close()`)
	b.Wait("the banner says so", text("#banner")+`.includes("it is down")`)
	o.source.Break(errors.New("it broke"))
	b.Click("[data-do=reset]")
	b.Click("#ask-yes")
	b.Wait("the dialog says so, and stays", text("#ask-problem")+`.includes("it broke") && $("#ask").open`)
	b.Click("#ask-no")
	b.Click("[data-do=unblock]")
	b.Wait("so does the banner", text("#banner")+`.includes("it broke")`)
	b.Wait("still blocked", `$("main .tag.bad")`)
	o.source.Break(nil)
	b.Do("load again", chromedp.Reload())
	b.complete()
	b.Click("[data-do=unblock]")
	b.Wait("unblocked", `!$("main .tag.bad")`)
}

// TestDashboardKeyboard finds a key, blocks, unblocks and resets it by the keyboard alone.
func TestDashboardKeyboard(t *testing.T) {
	t.Parallel()
	o := operate(t, often)
	b := o.view(t, "#token="+o.Token)
	for range 6 { // the skip link, four pages, and the field
		b.press(kb.Tab)
	}
	b.Wait("the field for a key", `document.activeElement.id === "find-key"`)
	b.Key("a key, and Enter", "alice"+kb.Enter)
	b.Eventually("its page", text("main h2"), "Key alice")
	b.Wait("its rows", `$$("main .limit").length === 3`)
	tabTo := func(what string) {
		t.Helper()
		for range 40 {
			b.press(kb.Tab)
			if Read[bool](b, `document.activeElement.matches(`+fmt.Sprintf("%q", what)+`)`) {
				return
			}
		}
		t.Fatalf("Tab does not come to %s", what)
	}
	login := `[data-policy="login"]`
	state := `$$("main .limit").find(r => r.textContent.includes("login")).textContent.includes("blocked")`
	tabTo("[data-do=block]" + login)
	b.Key("Enter", kb.Enter)
	b.Wait("the dialog, with the focus in it", `$("#ask").open && $("#ask").contains(document.activeElement) && $("#ask").matches(":modal")`)
	b.Key("Escape", kb.Escape)
	b.Wait("it is closed, and the button has the focus", `!$("#ask").open && document.activeElement.matches("[data-do=block]`+strings.ReplaceAll(login, `"`, `'`)+`")`)
	b.Key("Enter", kb.Enter)
	b.Wait("the dialog", `$("#ask").open`)
	tabTo("#ask-yes")
	b.Key("Enter", kb.Enter)
	b.Wait("blocked", `!$("#ask").open && `+state)
	b.Eventually("the live region says it", text("#said"), "Blocked under login, token bucket.")
	b.Wait("the button has the focus", `document.activeElement.matches("[data-do=block]")`)
	tabTo("[data-do=unblock]" + login)
	b.Key("Space", " ")
	b.Wait("unblocked", "!"+state)
	b.Wait("the button keeps the focus, and says that it has nothing to do", `document.activeElement.matches("[data-do=unblock][aria-disabled=true]")`)
	tabTo("[data-do=reset]" + login)
	b.Key("Enter", kb.Enter)
	b.Wait("the dialog", `$("#ask").open`)
	tabTo("#ask-yes")
	b.Key("Enter", kb.Enter)
	b.Wait("the row is gone, and the focus is on the page", `!$$("main .limit").some(r => r.textContent.includes("login")) && $("main").contains(document.activeElement)`)
	if n := o.source.Calls("Block") + o.source.Calls("Unblock") + o.source.Calls("Reset"); n != 3 {
		t.Errorf("%d changes", n)
	}
	b.visit("#/")
	b.Run("the skip link", `$(".skip").focus()`)
	b.Key("Enter", kb.Enter)
	b.Wait("is to the content", `document.activeElement === $("main") && location.hash === "#/"`)
}

// TestDashboardBlockForm: a key is blocked under a policy under which it has no row, and for
// another time; a mistake is shown in the dialog.
func TestDashboardBlockForm(t *testing.T) {
	t.Parallel()
	o := operate(t, often)
	b := o.change(t, keyPage("mallory"))
	b.Tolerate("status of 400")
	b.Click("[data-do=block]")
	b.Wait("the dialog", `$("#ask").open`)
	b.Type("#ask [name=policy]", "No Policy")
	b.Run("another time", `$("#ask [name=for]").value = ""; $("#ask [name=for]").dispatchEvent(new Event("change"))`)
	b.Wait("its field", `$("#ask [name=other]").checkVisibility()`)
	b.Type("#ask [name=other]", "soon")
	b.Click("#ask-yes")
	b.Wait("the mistake", text("#ask-problem")+`.includes("for is")`)
	b.Type("#ask [name=other]", "36h")
	b.Click("#ask-yes")
	b.Wait("another", text("#ask-problem")+`.includes("No Policy")`)
	b.Type("#ask [name=policy]", "login")
	b.Click("#ask-yes")
	b.Wait("blocked", `!$("#ask").open && $("main .tag.bad").textContent.includes("in 1 d 12 h")`)
}

// TestDashboardToken: without the token there are no buttons; the token leaves the address,
// and is kept for the tab.
func TestDashboardToken(t *testing.T) {
	t.Parallel()
	o := operate(t, often)
	b := o.view(t, keyPage("alice"))
	const buttons = `$$("[data-do=block], [data-do=unblock], [data-do=reset]").length`
	b.Eventually("buttons without the token", buttons, 0)
	wrong := o.view(t, "#token="+dashboard.NewToken())
	wrong.visit(keyPage("alice"))
	wrong.Eventually("buttons with another token", buttons, 0)
	b.Do("leave", chromedp.Navigate("about:blank"))
	wrong.Do("leave", chromedp.Navigate("about:blank"))
	b = o.view(t, "#token="+o.Token)
	b.Wait("the token is not in the address", `!location.href.includes("token") && !document.documentElement.outerHTML.includes(`+js(o.Token)+`)`)
	b.visit(keyPage("alice"))
	b.Eventually("buttons with the token", buttons, 10)
	b.Do("load again", chromedp.Reload())
	b.complete()
	b.Eventually("buttons", buttons, 10)
	b.Tolerate("status of 503") // of a request in flight when the server stops
	b.Tolerate("ERR_")
	b.Tolerate("status of 403")
	o.Stop()
	b.Wait("the page says that the server is away", text("#banner")+`.includes("Start it again with: pglimit dashboard")`)
	o.config.Token = dashboard.NewToken() // as another start of the command has
	o.Again()
	b.Eventually("no buttons, because the token is of the server before", buttons, 0)
	b.Wait("the page says why", text("#database")+`.includes("not valid any more")`)
	b.Run("the new URL in the same tab", fmt.Sprintf(`location.hash = "#token=%s"`, o.config.Token))
	b.Wait("changes can be made", text("#database")+`.includes("you can make changes") && !location.href.includes("token")`)
	b.visit(keyPage("alice"))
	b.Eventually("buttons", buttons, 10)
	if n := o.source.Calls("Block"); n != 0 {
		t.Errorf("%d blocks", n)
	}
}

// TestDashboardCommand operates the command over a database: a key is found by its name,
// blocked, unblocked and reset, and the limiter follows.
func TestDashboardCommand(t *testing.T) {
	t.Parallel()
	database := migrated.New(t)
	pool := must.OK(pgxpool.New(t.Context(), database))(t)
	defer pool.Close()
	l := must.OK(limiter.New(pool, &limiter.Config{DisableDenyCache: true, Timeout: time.Minute}))(t)
	p := limiter.Policy{Name: "login", Algorithm: limiter.SlidingWindowLog, Limit: 10, Period: 1000 * time.Hour}
	level := func() limiter.Result {
		t.Helper()
		r := must.OK(l.Check(t.Context(), p, "alice", 0))(t)
		return r
	}
	must.OK(l.Charge(t.Context(), p, "alice", 7))(t)
	c := exec.Command(command(t), "dashboard", "--addr", "localhost:0", "--json", "--write")
	c.Env = append(os.Environ(), "DATABASE_URL="+database)
	c.Stderr = os.Stderr
	stdout, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		if err := c.Wait(); err != nil {
			t.Errorf("the interrupted command ended with %v", err)
		}
	})
	var at struct{ URL string }
	must.Succeed(t, json.NewDecoder(stdout).Decode(&at))
	b := Open(t, chromium, at.URL, first(`AbortSignal.timeout = () => null`))
	b.Tolerate("/api/doctor") // a busy machine takes longer than the command gives it; the page asks again
	b.complete()
	b.Wait("no denials, and why", `$("main").textContent.includes("DenialLog")`)
	b.Wait("the doctor's checks", `$("main").textContent.includes("checks")`)
	for _, page := range []string{"#/policies", "#/keys", "#/doctor"} {
		b.visit(page)
	}
	b.Run("find the key", `$("#find-key").value = "alice"; $("#find").requestSubmit()`)
	b.Wait("its row", `$("main").textContent.includes("7 of 10")`)
	b.Click("[data-do=block][data-policy]")
	b.Click("#ask-yes")
	b.Wait("blocked", `$("main .tag.bad")`)
	if r := level(); r.Reason != limiter.ReasonBlocked || r.Level != 7 {
		t.Errorf("blocked: %+v", r)
	}
	b.Click("[data-do=unblock]")
	b.Wait("unblocked", `!$("main .tag.bad")`)
	if r := level(); r.Reason != "" || r.Level != 7 {
		t.Errorf("unblocked: %+v", r)
	}
	b.Click("[data-do=reset]")
	b.Click("#ask-yes")
	b.Wait("reset", `$("main").textContent.includes("The key has no row")`)
	if r := level(); r.Level != 0 {
		t.Errorf("reset: %+v", r)
	}
}
