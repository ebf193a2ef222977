package cli

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Output writes results to a command's stdout, as text or as JSON.
type Output struct {
	// JSON selects JSON. It is set by --json.
	JSON bool
}

// Register adds --json.
func (o *Output) Register(flags *pflag.FlagSet) {
	flags.BoolVar(&o.JSON, "json", false, "write the result as JSON")
}

// Print writes a command's result: value if --json is set, else text.
func (o *Output) Print(cmd *cobra.Command, value any, text string) error {
	if !o.JSON {
		_, err := io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
	enc := json.NewEncoder(cmd.OutOrStdout())
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}

// Answer prints the result of a command with a yes-or-no answer. It returns
// ErrDenied if the answer is no.
func (o *Output) Answer(cmd *cobra.Command, yes bool, value any, text string) error {
	if err := o.Print(cmd, value, text); err != nil {
		return err
	}
	if !yes {
		return ErrDenied
	}
	return nil
}
