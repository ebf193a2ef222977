package main

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
)

// versions is what the command is made of.
type versions struct {
	Version    string `json:"version"`
	Revision   string `json:"revision,omitempty"`
	Go         string `json:"go"`
	PostgreSQL string `json:"postgresql,omitempty"`
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Tell the versions of pglimit, Go and PostgreSQL",
		Long: `Tell the version of pglimit and of the Go that built it and, when a database is
named, of the PostgreSQL server.`,
		Example: `  pglimit version
  pglimit version --json --database-url postgres://app@localhost:5432/shop`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := built(debug.ReadBuildInfo())
			if a.db.Named() {
				pool, err := a.db.Open(cmd)
				if err != nil {
					return err
				}
				defer pool.Close()
				if v.PostgreSQL, err = connect.ServerVersion(cmd.Context(), pool); err != nil {
					return err
				}
			}
			return a.out.Print(cmd, v, v.text())
		},
	}
}

// built reads what the Go tool noted in the program.
func built(info *debug.BuildInfo, ok bool) versions {
	if !ok {
		return versions{Version: "unknown", Go: "unknown"}
	}
	v := versions{Version: cmp.Or(info.Main.Version, "(devel)"), Go: info.GoVersion}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Revision = s.Value
		}
	}
	return v
}

func (v versions) text() string {
	var text strings.Builder
	fmt.Fprintf(&text, "pglimit %s", v.Version)
	if v.Revision != "" {
		fmt.Fprintf(&text, " (%s)", v.Revision)
	}
	fmt.Fprintf(&text, "\n%s\n", v.Go)
	if v.PostgreSQL != "" {
		fmt.Fprintf(&text, "PostgreSQL %s\n", v.PostgreSQL)
	}
	return text.String()
}
