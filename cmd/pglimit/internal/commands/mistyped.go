package commands

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/internal/printable"
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

// nameArguments makes every command without subcommands answer a wrong number of arguments
// with its form.
func nameArguments(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		nameArguments(sub)
	}
	check := cmd.Args
	if cmd.HasSubCommands() || check == nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if check(cmd, args) == nil {
			return nil
		}
		return fmt.Errorf("got %s: the form is `%s`", printable.Count(len(args), "argument"), cmd.UseLine())
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
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		return unknownFlag(cmd, unknown)
	case errors.As(err, &invalid):
		flag := invalid.GetFlag()
		return fmt.Errorf("--%s is %.80q: %s", flag.Name, invalid.GetValue(), reason(flag, invalid.Unwrap()))
	}
	return err
}

// forms describe the values of pflag's types, whose own errors are those of strconv.
var forms = map[string]string{"int": "use a whole number, such as 20", "int64": "use a whole number, such as 20", "bool": "use true or false", "float64": share, "float64Slice": share}

const share = "use a number, such as 0.2"

// reason says why a flag has no such value.
func reason(flag *pflag.Flag, err error) string {
	if form, ok := forms[flag.Value.Type()]; ok {
		return form
	}
	return err.Error()
}

// unknownFlag returns the error of a flag that cmd does not have, with the one that is
// probably meant.
func unknownFlag(cmd *cobra.Command, err *pflag.NotExistError) error {
	word := err.GetSpecifiedName()
	if letters := err.GetSpecifiedShortnames(); letters != "" { // -limit
		word = letters
		if strings.ContainsAny(letters[:1], "0123456789.") { // a number below 0
			return fmt.Errorf("-%.20s begins with -, so it is read as a flag: write -- before the arguments, as in `%s -- %s`", letters, cmd.CommandPath(), strings.TrimPrefix(cmd.Use, cmd.Name()+" "))
		}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return errors.New(err.Error() + didYouMean(word, names, "--"))
}

// didYouMean returns the end of a sentence about an unknown word: those of the names that it may
// mean, with a prefix, or "".
func didYouMean(word string, names []string, prefix string) string {
	all := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, name := range names {
		all.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	near := all.SuggestionsFor(word)
	if len(near) == 0 {
		return ""
	}
	return `; did you mean "` + prefix + strings.Join(near, `" or "`+prefix) + `"?`
}

// unknownCommand returns the error of a word that is not a subcommand of cmd.
func unknownCommand(cmd *cobra.Command, word string) error {
	if strings.Contains(word, "://") || strings.Contains(strings.ToLower(word), "password") {
		return errors.New("unknown command: it is not shown, because it may have a password; set DATABASE_URL to name a database")
	}
	text := fmt.Sprintf("unknown command %.60q", word)
	if names := nearest(cmd, word); len(names) > 0 {
		text += `; did you mean "` + strings.Join(names, `" or "`) + `"?`
	}
	return errors.New(text)
}

// nearest returns the subcommands of cmd that word may mean: one that has the name in another
// group, or those that begin with word or differ from it in two characters.
func nearest(cmd *cobra.Command, word string) []string {
	for _, sub := range cmd.Commands() {
		for _, below := range sub.Commands() {
			if below.Name() == strings.ToLower(word) && below.IsAvailableCommand() {
				return []string{sub.Name() + " " + below.Name()}
			}
		}
	}
	for _, sub := range cmd.Commands() {
		if strings.EqualFold(sub.Name(), word) && sub.IsAvailableCommand() {
			return []string{sub.Name()}
		}
	}
	cmd.SuggestionsMinimumDistance = 2
	return cmd.SuggestionsFor(word)
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
