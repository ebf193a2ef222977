package cli

import (
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/internal/printable"
)

// ParseUnits reads a number of units in decimals: 10, 2.5 or 1e6. The error does not quote
// the text.
func ParseUnits(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || strings.Trim(text, "0123456789.eE+-") != "" { // no NaN, Inf or 0x10
		return 0, errors.New("use a number, such as 10 or 2.5")
	}
	return v, nil
}

// UnitsVar adds a flag for a number of units.
func UnitsVar(flags *pflag.FlagSet, to *float64, name string, value float64, usage string) {
	*to = value
	flags.Var((*unitsValue)(to), name, usage)
}

// unitsValue is the pflag.Value of UnitsVar.
type unitsValue float64

func (u *unitsValue) Set(text string) error {
	v, err := ParseUnits(text)
	if err == nil {
		*u = unitsValue(v)
	}
	return err
}

// Type makes the flag a number in help texts.
func (u *unitsValue) Type() string { return "number" }

// String returns the number as people write it, never 1e+06.
func (u *unitsValue) String() string { return printable.Number(float64(*u)) }
