package policyflags

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// choice is the pflag.Value of a value with a name.
type choice[T fmt.Stringer] struct {
	to     *T
	values []T
}

// choiceVar adds a flag for one of some values, of which the first is the default.
func choiceVar[T fmt.Stringer](cmd *cobra.Command, to *T, name, usage string, values ...T) {
	c := choice[T]{to, values}
	cmd.Flags().Var(c, name, usage)
	complete(cmd, name, c.names()...)
}

func (c choice[T]) names() (all []string) {
	for _, v := range c.values {
		all = append(all, v.String())
	}
	return all
}

func (c choice[T]) String() string { return (*c.to).String() }

// Type makes the flag a string in help texts.
func (c choice[T]) Type() string { return "string" }

func (c choice[T]) Set(text string) error {
	i := slices.Index(c.names(), text)
	if i < 0 {
		return errors.New("use " + strings.Join(c.names(), " or "))
	}
	*c.to = c.values[i]
	return nil
}
