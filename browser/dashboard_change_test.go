package browser

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pglimit/pglimit/internal/dashboard"
)

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
	b.Wait("its rows", `$$("main table")[0]?.querySelectorAll("tbody tr").length === 3`)
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
	state := `$$("main tbody tr").find(r => r.textContent.includes("login")).textContent.includes("blocked")`
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
	b.Wait("the row is gone, and the focus is on the page", `!$$("main tbody tr").some(r => r.textContent.includes("login") && r.querySelector("[data-do]")) && $("main").contains(document.activeElement)`)
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
	b.Tolerate("ERR_")
	b.Tolerate("status of 403")
	o.Stop()
	b.Wait("the page says that the server is away", text("#banner")+`.includes("Start it again with: pglimit dashboard")`)
	o.config.Token = dashboard.NewToken() // as another start of the command has
	o.Again()
	b.Eventually("no buttons, because the token is of the server before", buttons, 0)
	b.Wait("the page says why", text("#database")+`.includes("not valid any more")`)
	b.Run("the new URL in the same tab", fmt.Sprintf(`location.hash = "#token=%s"`, o.config.Token))
	b.Wait("changes are allowed", text("#database")+`.includes("changes are allowed") && !location.href.includes("token")`)
	b.visit(keyPage("alice"))
	b.Eventually("buttons", buttons, 10)
	if n := o.source.Calls("Block"); n != 0 {
		t.Errorf("%d blocks", n)
	}
}
