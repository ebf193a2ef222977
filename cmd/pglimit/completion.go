package main

import "github.com/spf13/cobra"

// addCompletion adds cobra's own completion command, with examples as all
// commands have them.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	examples := map[string]string{
		"completion": "  source <(pglimit completion bash)",
		"bash":       "  source <(pglimit completion bash)",
		"zsh":        "  source <(pglimit completion zsh)",
		"fish":       "  pglimit completion fish | source",
		"powershell": "  pglimit completion powershell | Out-String | Invoke-Expression",
	}
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Example = examples[c.Name()]
		for _, shell := range c.Commands() {
			shell.Example = examples[shell.Name()]
		}
	}
}
