package cli

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/internal/duration"
)

// DurationVar adds a flag for a duration. Unlike pflag's, it accepts the unit d of 24
// hours, and its errors have examples.
func DurationVar(flags *pflag.FlagSet, to *time.Duration, name string, value time.Duration, usage string) {
	*to = value
	flags.Var((*durationValue)(to), name, usage)
}

// durationValue is the pflag.Value of DurationVar.
type durationValue time.Duration

func (d *durationValue) Set(text string) error {
	v, err := duration.Parse(text)
	if err != nil {
		return err
	}
	*d = durationValue(v)
	return nil
}

// Type makes the flag a duration in help texts.
func (d *durationValue) Type() string { return "duration" }

// String returns the form that people write. 0 has no unit, because pflag leaves out such a default in help
// texts.
func (d *durationValue) String() string {
	if *d == 0 {
		return "0"
	}
	return duration.Format(time.Duration(*d))
}
