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
	if usage := flags.FlagUsages(); period != time.Minute || !strings.Contains(usage, "--period time     a time (default 1m0s)\n") || !strings.HasSuffix(usage, "--tick duration   none\n") {
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
