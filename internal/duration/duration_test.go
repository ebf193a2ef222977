package duration

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0":          0,
		"0d":         0,
		"90s":        90 * time.Second,
		"1h30m":      90 * time.Minute,
		"30d":        30 * Day,
		"1d12h":      36 * time.Hour,
		"1.5d":       36 * time.Hour,
		".5d":        12 * time.Hour,
		"1.d":        Day,
		"-1d":        -Day,
		"+2d3m4.5s":  2*Day + 3*time.Minute + 4500*time.Millisecond,
		"1d1ms2us":   Day + time.Millisecond + 2*time.Microsecond,
		"0.000001d":  86400 * time.Microsecond,
		"106751d":    106751 * Day,
		"0.9999999d": Day - 8640*time.Microsecond,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "-d", ".d", "1.2.3d", "1dd", "1 d", "1d 2h", "d1", "1d2", "1days", "--1d", "+-1d", "1d-1h", "12h1d", "1d1d", "1D", "30", "soon", "1e3d", "１d"} {
		if got, err := Parse(text); err != errForm {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"106752d", "106751d24h", "99999999999999999999d", "106751.999999d"} {
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), "the longest duration is 106751 days") {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
}

func TestFormat(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0s": "0s", "60s": "1m", "90s": "1m30s", "10m": "10m", "20h": "20h", "60m": "1h", "1h30s": "1h0m30s", "24h": "24h", "36h": "36h", "720h": "30d", "-48h": "-2d", "1.5s": "1.5s",
	} {
		d, err := Parse(text)
		if got := Format(d); err != nil || got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// FuzzParse: without d, Parse agrees with time.ParseDuration. Every duration can be read
// back in days.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"1d", "1.5d2h", "-1d", "1h", "", "d", "9223372036854775807ns1d",
		"106751d", "-106751d", "106752d", "106751d23h47m16.854775807s", "106751d23h47m16.854775808s", "106751d24h", "106751.99999d", "99999999999999999999d", "213503d", "320256d",
		"1.d", ".5d", ".d", "1..5d", "1.5.5d", "-d", "+1d", "+1d12h", "--1d", "+-1d", "1d-1h", "1d+1h", "d1", "1dd", "1d 1h", "1d1.5", "1day", "-1d12h", "1d0", "0d00", "1d0h",
		"0.123456789012345678901234567890d", "0.99999d", "1.25d0.5ns", "1d9223372036854775807ns", "-1.5d", "1e3d",
	} {
		f.Add(text, int64(len(text)))
	}
	f.Add("x", int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, text string, n int64) {
		got, err := Parse(text)
		want, wrong := time.ParseDuration(text)
		if wrong == nil && (err != nil || got != want) {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
		if err == nil && wrong != nil && !strings.Contains(text, "d") {
			t.Errorf("%q: got %v, want %v", text, got, wrong)
		}
		if n < 0 {
			return
		}
		whole := time.Duration(n)
		days, rest := whole/Day, whole%Day
		if got, err := Parse(fmt.Sprintf("%dd%v", days, rest)); err != nil || got != whole {
			t.Errorf("%v: got %v, %v", whole, got, err)
		}
	})
}

// TestP99: the nearest rank.
func TestP99(t *testing.T) {
	t.Parallel()
	for most, want := range map[int]time.Duration{0: 0, 1: 1, 200: 198} {
		var all []time.Duration
		for i := most; i > 0; i-- {
			all = append(all, time.Duration(i))
		}
		if got := P99(all); got != want {
			t.Errorf("of 1 to %d: %v", most, got)
		}
	}
}
