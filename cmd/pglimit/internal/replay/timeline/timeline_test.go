package timeline

import "testing"

// TestDivide: logs of any length have a suitable number of parts of whole seconds. Their
// first and last requests are in the first and the last part.
func TestDivide(t *testing.T) {
	from := UTC(0).AddDate(56, 4, 16).UnixMicro() + 36_303*Second
	for span := int64(0); span < 8000*365*Day; span += span/7 + Second {
		if p := Divide(Second, Second+span); p.Start > Second || p.Index(Second) != 0 {
			t.Fatalf("%d s from 1970: %+v", span/Second, p)
		}
		p := Divide(from, from+span)
		if p.Count < 1 || p.Count > maxParts || p.Length%Second != 0 || p.Index(from) != 0 || p.Index(from+span) != p.Count-1 {
			t.Fatalf("%d s: %+v", span/Second, p)
		}
		if p.Length > Second && p.Count < maxParts/4 {
			t.Errorf("%d s: %d parts are too few", span/Second, p.Count)
		}
	}
	for _, c := range []struct {
		span, length int64
		start        string
	}{
		{0, Second, "2026-05-17 10:05:03"},
		{71 * Second, Second, "2026-05-17 10:05:03"},
		{72 * Second, 2 * Second, "2026-05-17 10:05:02"},
		{Hour, Minute, "2026-05-17 10:05:00"},
		{Day, 30 * Minute, "2026-05-17 10:00:00"},
		{60 * Day, Day, "2026-05-17 00:00:00"},
		{365 * Day, 7 * Day, "2026-05-11 00:00:00"}, // a Monday
	} {
		if p := Divide(from, from+c.span); p.Length != c.length || UTC(p.Start).Format("2006-01-02 15:04:05") != c.start {
			t.Errorf("%d s: parts of %d s from %v, want %d s from %s", c.span/Second, p.Length/Second, UTC(p.Start), c.length/Second, c.start)
		}
	}
}
