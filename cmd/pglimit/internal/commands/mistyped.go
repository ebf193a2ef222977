package commands

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// nameMistypes makes every command with subcommands name a subcommand that it does not
// have, together with the one that is probably meant. cobra names neither before the error
// of a flag.
func nameMistypes(root *cobra.Command) {
	for _, cmd := range withSubcommands(root) {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		}
		if !cmd.Runnable() { // cobra would print the help, and exit with 0, for any argument
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// withSubcommands returns cmd and the commands below it that have subcommands.
func withSubcommands(cmd *cobra.Command) (all []*cobra.Command) {
	if !cmd.HasSubCommands() {
		return nil
	}
	all = append(all, cmd)
	for _, sub := range cmd.Commands() {
		all = append(all, withSubcommands(sub)...)
	}
	return all
}

// flagError returns the error of a command line whose flags cannot be parsed. A flag that
// cmd does not have is usually one of the subcommand that was mistyped before it.
func flagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	return err
}

// unknownCommand returns the error of a word that is not a subcommand of cmd.
func unknownCommand(cmd *cobra.Command, word string) error {
	if strings.Contains(word, "://") || strings.Contains(strings.ToLower(word), "password") {
		return errors.New("unknown command: it is not shown, because it may have a password; set DATABASE_URL to name a database")
	}
	text := fmt.Sprintf("unknown command %.60q", word)
	if name := nearest(cmd, word); name != "" {
		text += fmt.Sprintf("; did you mean %q?", name)
	}
	return errors.New(text)
}

// nearest returns the subcommand of cmd that word probably means, or "". That is, in this
// order, a command of that name in another group, a subcommand that begins with word, and
// the subcommand with the fewest typing errors, of at most two.
func nearest(cmd *cobra.Command, word string) string {
	word = strings.ToLower(word)
	type guess struct {
		name   string
		errors int
	}
	var guesses []guess
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() && sub.Name() != "help" {
			continue
		}
		switch n := typingErrors(word, sub.Name()); {
		case len(word) > 1 && strings.HasPrefix(sub.Name(), word):
			guesses = append(guesses, guess{sub.Name(), 0})
		case n <= 2 && n < len(word) && n < len(sub.Name()):
			guesses = append(guesses, guess{sub.Name(), n})
		}
		for _, below := range sub.Commands() {
			if below.Name() == word && below.IsAvailableCommand() {
				guesses = append(guesses, guess{sub.Name() + " " + word, -1})
			}
		}
	}
	if len(guesses) == 0 {
		return ""
	}
	return slices.MinFunc(guesses, func(a, b guess) int {
		return cmp.Or(cmp.Compare(a.errors, b.errors), cmp.Compare(a.name, b.name))
	}).name
}

// typingErrors returns the least number of characters to insert, delete, replace or swap
// with the next one that makes a into b.
func typingErrors(a, b string) int {
	x, y := []rune(a), []rune(b)
	if len(x) > 60 {
		return len(x)
	}
	d := make([][]int, len(x)+1)
	for i := range d {
		d[i] = make([]int, len(y)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			wrong := 1
			if x[i-1] == y[j-1] {
				wrong = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+wrong)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(x)][len(y)]
}

// replaceHelp makes help fail for a command that does not exist.
func replaceHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() != "help" {
			continue
		}
		cmd.Run = nil
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			found, rest, err := root.Find(args)
			switch {
			case err != nil:
				return err
			case len(rest) > 0 && found.HasSubCommands():
				return unknownCommand(found, rest[0])
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		}
	}
}
