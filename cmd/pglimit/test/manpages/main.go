// Command manpages writes what packages of the command have besides the program:
//
//	go run ./cmd/pglimit/test/manpages v0.1.0 DIR
//
// writes DIR/man1/pglimit*.1.gz, the manual pages of this version, and the completions of shells
// to DIR/completions. SOURCE_DATE_EPOCH is the pages' date; the same date gives the same files.
//
// It is apart from the command, which so needs no library for manual pages.
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "manpages: give the version and a directory, such as v0.1.0 bin/package")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "manpages:", err)
		os.Exit(1)
	}
}

func write(version, dir string) error {
	man, completions := filepath.Join(dir, "man1"), filepath.Join(dir, "completions")
	for _, d := range []string{man, completions} {
		if err := os.RemoveAll(d); err != nil {
			return err
		}
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	root := commands.Tree()
	if err := writeCompletions(root, completions); err != nil {
		return err
	}
	quoteAll(root, map[*pflag.Flag]bool{})
	return writePages(root, version, man)
}

// writeCompletions uses the names that the shells' directories want.
func writeCompletions(root *cobra.Command, dir string) error {
	for name, write := range map[string]func(string) error{
		"pglimit":      func(file string) error { return root.GenBashCompletionFileV2(file, true) },
		"_pglimit":     root.GenZshCompletionFile,
		"pglimit.fish": func(file string) error { return root.GenFishCompletionFile(file, true) },
		"pglimit.ps1":  root.GenPowerShellCompletionFileWithDesc,
	} {
		if err := write(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func writePages(c *cobra.Command, version, dir string) error {
	if !c.IsAvailableCommand() && c.HasParent() {
		return nil
	}
	for _, sub := range c.Commands() {
		if err := writePages(sub, version, dir); err != nil {
			return err
		}
	}
	text, err := page(c, version)
	if err != nil {
		return fmt.Errorf("the page of %s: %w", c.CommandPath(), err)
	}
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1.gz"
	return os.WriteFile(filepath.Join(dir, name), packed.Bytes(), 0o644)
}

func page(c *cobra.Command, version string) ([]byte, error) {
	c.DisableAutoGenTag = true
	var text bytes.Buffer
	err := doc.GenMan(c, &doc.GenManHeader{Source: "pglimit " + version, Manual: "pglimit"}, &text)
	return text.Bytes(), err
}

// quoteAll changes the texts of c and of the commands below it: cobra takes them for Markdown, so
// what that would read as markup is quoted. quoted has the flags that are done, since commands
// share some.
func quoteAll(c *cobra.Command, quoted map[*pflag.Flag]bool) {
	c.Short, c.Long = quote(c.Short), quote(c.Long)
	quoteFlag := func(f *pflag.Flag) {
		if !quoted[f] {
			quoted[f] = true
			_, usage := pflag.UnquoteUsage(f)
			f.Usage = quote(usage)
		}
	}
	c.Flags().VisitAll(quoteFlag)
	c.PersistentFlags().VisitAll(quoteFlag)
	for _, sub := range c.Commands() {
		quoteAll(sub, quoted)
	}
}

var markup = regexp.MustCompile("[\\\\`*_\\[\\]<>#&|~]")

// quote leaves indented lines, which Markdown shows as they are, with a blank line before them.
func quote(text string) string {
	var out strings.Builder
	indented := false
	for line := range strings.Lines(text) {
		was := indented
		indented = strings.HasPrefix(line, "  ")
		if indented != was {
			out.WriteByte('\n')
		}
		if indented {
			out.WriteString("  " + line)
		} else {
			out.WriteString(markup.ReplaceAllString(line, `\$0`))
		}
	}
	return out.String()
}
