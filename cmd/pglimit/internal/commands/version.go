package commands

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
)

// version is that of a release, which its build sets by -ldflags "-X …commands.version=v0.1.0".
// Empty: what the Go tool recorded.
var version string

// versions is the command's JSON.
type versions struct {
	Version    string `json:"version"`
	Revision   string `json:"revision,omitempty"`
	Go         string `json:"go"`
	PostgreSQL string `json:"postgresql,omitempty"`
}

func newVersion(db *connect.Database, out *cli.Output) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of pglimit, Go and PostgreSQL",
		Long: `Print the versions of pglimit, of the Go that built it and, if a database is
named, of the PostgreSQL server.`,
		Example: `  pglimit version
  pglimit version --json --database-url postgres://app@localhost:5432/shop`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := fromBuild(debug.ReadBuildInfo())
			if db.Named() {
				pool, err := db.Open(cmd)
				if err != nil {
					return err
				}
				defer pool.Close()
				if v.PostgreSQL, err = connect.ServerVersion(cmd.Context(), pool); err != nil {
					return err
				}
			}
			return out.Print(cmd, v, v.text())
		},
	}
}

// programVersion returns the version of this program for pages.
func programVersion() string {
	return strings.Replace(fromBuild(debug.ReadBuildInfo()).Version, "(devel)", "development build", 1)
}

// fromBuild returns the versions that the build and the Go tool recorded in the program.
func fromBuild(info *debug.BuildInfo, ok bool) versions {
	if !ok {
		return versions{Version: cmp.Or(version, "unknown"), Go: "unknown"}
	}
	v := versions{Version: cmp.Or(version, info.Main.Version, "(devel)"), Go: info.GoVersion}
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
