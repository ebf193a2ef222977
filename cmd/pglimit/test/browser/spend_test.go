package browser

import (
	"fmt"
	"testing"
)

// places is the expression of what the card of slots shows at its places, and of who waits.
const places = `$$("#slots .place .who").map(e => e.textContent.replace(/\d+/, n => n - first)).concat($("#slots [data-is=waiting]").textContent.replace(/\d+/g, n => n - first))`

// testSlots: a job holds a place until it finishes. That of a job that died is free when its slot
// ends, and then the next job in the queue has it.
func testSlots(t *testing.T, p *Playground) {
	b := open(t, p, five(t.Name()))
	start, job := `#slots [data-post]`, func(n int, button string) string {
		return fmt.Sprintf("#slots .place:nth-child(%d) .%s", n, button)
	}
	b.Click(start)
	b.Wait("the first job", `$("#slots .place .who").textContent.startsWith("Job ")`)
	b.Run("its number", `window.first = $("#slots .place .who").textContent.slice(4) - 1`) // tests share a playground
	b.Eventually("one runs", places, []string{"Job 1", "free", "free", "–"})
	b.Run("more jobs", `for (let n = 0; n < 4; n++) { $("#slots [data-post]").click(); await new Promise(r => setTimeout(r, 300)) }`)
	b.Eventually("two wait", places, []string{"Job 1", "Job 2", "Job 3", "4, 5"})
	b.Eventually("held", text("#slots [data-is=held]"), "3 of 3")
	other := open(t, p, five(t.Name()))
	other.Wait("another tab shows them", `$$("#slots .place[data-state=held]").length === 3 && $("#slots [data-is=waiting]").textContent.includes(", ")`)
	b.Click(job(1, "finish"))
	b.Eventually("the next has its place", places, []string{"Job 4", "Job 2", "Job 3", "5"})
	b.Run("keep when it died", `window.died = Date.now()`)
	b.Click(job(2, "die"))
	b.Eventually("its slot is still held", places, []string{"Job 4", "Job 2 died", "Job 3", "5"})
	b.Eventually("a job has its place", places, []string{"Job 4", "Job 5", "Job 3", "–"})
	if ms := Read[int](b, `Date.now() - died`); ms < 5000 { // of 10 s since its last renewal, at most 3.3 s before
		t.Errorf("the slot of a job that died was another's after %d ms", ms)
	}
	b.Click("#reset")
	b.Eventually("none runs", places, []string{"free", "free", "free", "–"})
	b.Eventually("held", text("#slots [data-is=held]"), "0 of 3")
}

// testBalance: lots are spent by priority. What is left of one at its end is lost, and a denial
// changes nothing.
func testBalance(t *testing.T, p *Playground) {
	b := open(t, p, five(t.Name()))
	figures := `["left", "owed", "spent", "expired", "denied"].map(name => $("#balance [data-is=" + name + "]").textContent).join(" ")`
	lots := `$$("#balance .lots li").map(e => e.textContent.replace(/ends in .*/, "ends"))`
	b.Click(`#balance [data-body*=bought]`)
	b.Eventually("a lot", lots, []string{"bought 1: 50, priority 0, no end"})
	b.Click(`#balance [data-body*=gift]`)
	b.Eventually("the gift is first", lots, []string{"gift 2: 20, priority -1, ends", "bought 1: 50, priority 0, no end"})
	b.Click(`#balance [value="10"]`)
	b.Eventually("and is spent first", lots, []string{"gift 2: 10, priority -1, ends", "bought 1: 50, priority 0, no end"})
	b.Eventually("the rest is lost", figures, "50 0 10 10 0")
	b.Click(`#balance [value="60"]`)
	b.Eventually("ten are owed", figures, "0 10 70 10 0")
	b.Click(`#balance [value="60"]`)
	b.Eventually("denied", figures, "0 10 70 10 1")
	b.Click("#reset")
	b.Eventually("reset", figures, "0 0 0 0 0")
}
