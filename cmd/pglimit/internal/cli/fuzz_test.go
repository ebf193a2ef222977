package cli

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
)

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
