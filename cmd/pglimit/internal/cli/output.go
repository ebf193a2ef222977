package cli

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/internal/printable"
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
	return WriteJSON(cmd.OutOrStdout(), value, "  ")
}

// WriteJSON writes value as JSON with that indent, without a character that a terminal obeys.
func WriteJSON(w io.Writer, value any, indent string) error {
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(value); err != nil {
		return err
	}
	_, err := io.WriteString(w, printable.Escape(text.String()))
	return err
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
