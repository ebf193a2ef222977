package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Confirm asks a question on stderr and reads the answer from the command's standard
// input. It returns nil for y or yes, ErrDenied for another answer, and an error with the
// next step if there is none.
func Confirm(cmd *cobra.Command, question string) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "%s [y/N] ", question)
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	switch {
	case answer == "y" || answer == "yes":
		return nil
	case errors.Is(err, io.EOF) && answer == "":
		fmt.Fprintln(cmd.ErrOrStderr())
		return errors.New("there was no answer, and nothing was changed: pass --yes to go on without a question")
	case err != nil && !errors.Is(err, io.EOF):
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "nothing was changed")
	return ErrDenied
}
