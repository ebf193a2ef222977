package replay

import "testing"

// TestDivide: logs of any length have a suitable number of parts of whole seconds. Their
// first and last requests are in the first and the last part.
func TestDivide(t *testing.T) {
	from := utc(0).AddDate(56, 4, 16).UnixMicro() + 36_303*second
	for span := int64(0); span < 8000*365*day; span += span/7 + second {
		if p := divide(second, second+span); p.Start > second || p.Index(second) != 0 {
			t.Fatalf("%d s from 1970: %+v", span/second, p)
		}
		p := divide(from, from+span)
		if p.Count < 1 || p.Count > maxParts || p.Length%second != 0 || p.Index(from) != 0 || p.Index(from+span) != p.Count-1 {
			t.Fatalf("%d s: %+v", span/second, p)
		}
		if p.Length > second && p.Count < maxParts/4 {
			t.Errorf("%d s: %d parts are too few", span/second, p.Count)
		}
	}
	for _, c := range []struct {
		span, length int64
		start        string
	}{
		{0, second, "2026-05-17 10:05:03"},
		{71 * second, second, "2026-05-17 10:05:03"},
		{72 * second, 2 * second, "2026-05-17 10:05:02"},
		{hour, minute, "2026-05-17 10:05:00"},
		{day, 30 * minute, "2026-05-17 10:00:00"},
		{60 * day, day, "2026-05-17 00:00:00"},
		{365 * day, 7 * day, "2026-05-11 00:00:00"}, // a Monday
	} {
		if p := divide(from, from+c.span); p.Length != c.length || utc(p.Start).Format("2006-01-02 15:04:05") != c.start {
			t.Errorf("%d s: parts of %d s from %v, want %d s from %s", c.span/second, p.Length/second, utc(p.Start), c.length/second, c.start)
		}
	}
}
