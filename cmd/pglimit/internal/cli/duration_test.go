package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestDurationVar(t *testing.T) {
	t.Parallel()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	var period, tick time.Duration
	DurationVar(flags, &period, "period", time.Minute, "a `time`")
	DurationVar(flags, &tick, "tick", 0, "none")
	if usage := flags.FlagUsages(); period != time.Minute || !strings.Contains(usage, "--period time     a time (default 1m)\n") || !strings.HasSuffix(usage, "--tick duration   none\n") {
		t.Errorf("%v, usage %q", period, usage)
	}
	if err := flags.Parse([]string{"--period", "1d12h", "--tick=30d"}); err != nil || period != 36*time.Hour || tick != 720*time.Hour {
		t.Errorf("%v, %v, %v", period, tick, err)
	}
	if got, err := flags.GetDuration("period"); err != nil || got != period {
		t.Errorf("%v, %v", got, err)
	}
	err := flags.Parse([]string{"--period", "soon"})
	if want := `invalid argument "soon" for "--period" flag: use a number and a unit, such as 90s, 15m, 24h or 30d`; err == nil || err.Error() != want || period != 36*time.Hour {
		t.Errorf("got %v, %v, want %s", period, err, want)
	}
}

// FuzzDuration: a flag's duration is read as it is shown, and a text that is refused leaves
// the one before.
func FuzzDuration(f *testing.F) {
	for _, text := range []string{"", "0", "1d", "1.5d2h", "-1h", "106751d", "106752d", "1e9s", "soon", "1d1d", "1.0000001s"} {
		f.Add(text, int64(len(text))*1e15)
	}
	f.Fuzz(func(t *testing.T, text string, ns int64) {
		var d time.Duration
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		DurationVar(flags, &d, "period", time.Minute, "")
		if err := flags.Set("period", time.Duration(ns).String()); err != nil || d != time.Duration(ns) {
			t.Errorf("%v is read as %v, %v", time.Duration(ns), d, err)
		}
		before := d
		if err := flags.Set("period", text); err != nil {
			if d != before {
				t.Errorf("%q is refused (%v) and changed %v to %v", text, err, before, d)
			}
			return
		}
		after := d
		if err := flags.Set("period", flags.Lookup("period").Value.String()); err != nil || d != after {
			t.Errorf("%q is %v, shown as %q, read as %v, %v", text, after, flags.Lookup("period").Value, d, err)
		}
	})
}
