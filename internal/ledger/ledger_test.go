package ledger

import (
	"strings"
	"testing"
)

// TestJudge: a key may count what was acknowledged, with or without what got no answer.
func TestJudge(t *testing.T) {
	t.Parallel()
	var a Account
	a.Add(5, 5)   // allowed
	a.Add(-2, -2) // refunded
	a.Add(0, 3)   // no answer to an Allow
	a.Add(-1, 0)  // no answer to a Refund
	if a.Acknowledged != 5 || a.Unknown != 4 {
		t.Errorf("%+v", a)
	}
	lossy := a
	lossy.AddLossy(4, 4)
	lossy.AddLossy(-1, -1)
	for _, c := range []struct {
		of                   Account
		counted, lost, twice float64
		wrong                string
	}{
		{a, 2, 0, 0, ""},
		{a, 6, 0, 0, ""},
		{a, 1.9995, 0, 0, ""},
		{a, 1, 1, 0, "1.00 units are counted instead of 2 to 6"},
		{a, 7, 0, 1, "7.00 units are counted instead of 2 to 6"},
		{lossy, 5, 0, 0, ""},
		{lossy, 1, 4, 0, ""},
		{lossy, 0, 5, 0, "instead of 1 to 10"},
		{lossy, 10, 0, 0, ""},
		{lossy, 11, 0, 1, "instead of 1 to 10"},
	} {
		lost, twice, err := c.of.Judge(c.counted, 1e-3)
		if lost != c.lost || twice != c.twice || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%v of %+v: lost %v, twice %v, %v; want %+v", c.counted, c.of, lost, twice, err, c)
		}
	}
}
