package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// Failure is an error of a command as the user sees it. Its JSON is one line on stderr.
type Failure struct {
	// Message is one line.
	Message string `json:"error"`
	// Code is the kind of error: usage, database or interrupted.
	Code string `json:"code"`
	// ExitCode is the command's exit code. 0: the command continues, without a line of
	// its input.
	ExitCode int `json:"exit_code,omitempty"`
	// Line is the number, from 1, of the line of the input with the error; 0: none.
	Line int `json:"line,omitempty"`
	// NextStep is what to do about it, if that is not in Message.
	NextStep string `json:"next_step,omitempty"`
}

// NewFailure returns the Failure of a command that ends with err and exit code code.
func NewFailure(cmd *cobra.Command, err error, code int) Failure {
	f := Failure{Message: message(err), ExitCode: code}
	switch {
	case code == ExitUsage:
		f.Code, f.NextStep = "usage", "see `"+cmd.CommandPath()+" --help`"
	case code > exitSignal:
		f.Code = "interrupted"
	default:
		f.Code = "database"
	}
	return f
}

// Write writes f as one line, as text or as JSON.
func (f Failure) Write(w io.Writer, asJSON bool) {
	if asJSON {
		var line bytes.Buffer
		enc := json.NewEncoder(&line)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(f) // of strings and numbers
		_, _ = line.WriteTo(w)
		return
	}
	text := f.Message
	if f.Line > 0 {
		text = fmt.Sprintf("line %d: %s", f.Line, text)
	}
	switch question := strings.HasSuffix(text, "?"); {
	case f.NextStep != "" && question:
		text += " S" + f.NextStep[1:]
	case f.NextStep != "":
		text += "; " + f.NextStep
	}
	fmt.Fprintf(w, "pglimit: %s\n", text)
}

// BadLine writes the error of the input's line of that number to stderr; 0: of several
// lines.
func (o *Output) BadLine(cmd *cobra.Command, number int, err error) {
	Failure{Message: message(err), Code: "usage", Line: number}.Write(cmd.ErrOrStderr(), o.JSON)
}

// WantsJSON reports whether args, the arguments of a command line, have --json. It is for
// a command line whose flags cannot be parsed.
func WantsJSON(args []string) (wanted bool) {
	for _, a := range args {
		value, assigned := strings.CutPrefix(a, "--json=")
		switch {
		case a == "--":
			return wanted
		case a == "--json":
			wanted = true
		case assigned:
			wanted, _ = strconv.ParseBool(value)
		}
	}
	return wanted
}

// message returns an error in one line, without the name of the program.
func message(err error) string {
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), ": pglimit: ", ": "), "pglimit: ")
	var lines []string // such as the errors of several hosts
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}
