package commands

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/cluster"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
)

// States of a migration's objects.
const (
	present = "present"
	partly  = "partly"
	missing = "missing"
	unknown = "unknown" // it creates none
)

// migrationsStatus is the JSON of status.
type migrationsStatus struct {
	Migrations []migrationStatus `json:"migrations"`
	// Record is the table that records what pglimit has run.
	Record string `json:"record"`
	// Elsewhere reports whether objects exist that Record does not record.
	Elsewhere bool `json:"recorded_elsewhere"`
	// Goose has the version tables of the application's goose, if they were looked for.
	Goose []gooseTable `json:"goose"`
	// Cluster is where the tables are; null where there is no Citus.
	Cluster *cluster.Cluster `json:"cluster"`
}

type migrationStatus struct {
	Version   int64      `json:"version"`
	Name      string     `json:"name"`
	Applied   bool       `json:"applied"`
	AppliedAt *time.Time `json:"applied_at"` // null: not applied
	// Objects is the state of what the migration creates. Missing lists what does not
	// exist, and Changed what is not as the migration makes it.
	Objects string   `json:"objects"`
	Missing []string `json:"missing"`
	Changed []string `json:"changed"`
}

type gooseTable struct {
	Table    string         `json:"table"`
	Versions []gooseVersion `json:"versions"`
}

type gooseVersion struct {
	Version   int64     `json:"version"`
	AppliedAt time.Time `json:"applied_at"`
	Name      string    `json:"name,omitempty"` // of pglimit's migration; only with --dir
}

func newMigrateStatus(db *connect.Database, out *cli.Output) *cobra.Command {
	var table, dir string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which migrations have been run",
		Long: `Show which migrations have been run, and when, and whether what they create
exists as this release makes it. It changes nothing; up makes again what differs.

Migrations that an application ran with goose or as printed SQL are in that
tool's record, not in pglimit's. status then says that their tables exist
("present, not recorded"), and shows the version tables of goose in search_path,
or the one that --table names. goose records numbers only: with --dir, the
application's goose folder, status says which of them are pglimit's.

Exit code 0: the database answered, whatever has been run.`,
		Example: `  pglimit migrate status
  pglimit migrate status --table goose_db_version --dir db/migrations
  pglimit migrate status --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names, err := exportedNames(dir)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("table") && table == "" {
				return errors.New("--table is empty: name a version table of goose")
			}
			pool, err := db.OpenUnmigrated(cmd)
			if err != nil {
				return err
			}
			defer pool.Close()
			s, err := readStatus(cmd.Context(), pool, migrationSet(cmd))
			if err != nil {
				return cli.DatabaseError(err)
			}
			if s.Elsewhere || table != "" || dir != "" {
				records, err := migrate.Records(cmd.Context(), pool, table)
				if errors.Is(err, migrate.ErrNoRecord) {
					return fmt.Errorf("--table: %w", err)
				}
				if err != nil {
					return cli.DatabaseError(err)
				}
				s.Goose = gooseTables(records, names)
			}
			return out.Print(cmd, s, s.text())
		},
	}
	cmd.Flags().StringVar(&table, "table", "", "`name` of your goose's version table; default: all in search_path, if pglimit's record lacks what exists")
	cmd.Flags().StringVar(&dir, "dir", "", "`folder` of your goose migrations, to name pglimit's among their versions")
	_ = cmd.MarkFlagDirname("dir")
	return cmd
}

// readStatus returns what has been run, by pglimit's record, and what exists.
func readStatus(ctx context.Context, pool *pgxpool.Pool, set *migrate.Set) (*migrationsStatus, error) {
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	all, err := set.Status(ctx, db)
	if err != nil {
		return nil, err
	}
	var found []migrate.Presence
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		found, err = set.Present(ctx, tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	found = append(found, make([]migrate.Presence, len(all)-len(found))...) // nothing is known of a later release's
	s := &migrationsStatus{Migrations: []migrationStatus{}, Record: set.VersionTable(), Goose: []gooseTable{}}
	for i, m := range all { // both are in the order of the versions
		one := migrationStatus{Version: m.Version, Name: m.Name, Applied: m.Applied, Missing: append([]string{}, found[i].Missing...), Changed: append([]string{}, found[i].Changed...)}
		if m.Applied {
			at := m.AppliedAt.UTC()
			one.AppliedAt = &at
		}
		switch f := found[i]; {
		case f.Complete():
			one.Objects = present
		case len(f.Present) > 0:
			one.Objects = partly
		case len(f.Missing) > 0:
			one.Objects = missing
		default:
			one.Objects = unknown
		}
		if !m.Applied && len(found[i].Present) > 0 {
			s.Elsewhere = true
		}
		s.Migrations = append(s.Migrations, one)
	}
	if slices.ContainsFunc(s.Migrations, func(m migrationStatus) bool { return m.Objects != present && m.Objects != unknown }) || set != sets.Tables {
		return s, nil
	}
	s.Cluster, err = cluster.ReadOf(ctx, pool)
	return s, err
}

// exportedNames returns the names of pglimit's migrations in a goose folder by their
// versions there; none if dir is empty.
func exportedNames(dir string) (names map[int64]string, err error) {
	if dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	names = map[int64]string{}
	for _, e := range entries {
		number, rest, _ := strings.Cut(e.Name(), "_")
		name, ours := strings.CutPrefix(rest, "pglimit_")
		version, err := strconv.ParseInt(number, 10, 64)
		if ours && err == nil && strings.HasSuffix(name, ".sql") && e.Type()&fs.ModeDir == 0 {
			names[version] = strings.TrimSuffix(name, ".sql")
		}
	}
	return names, nil
}

func gooseTables(records []migrate.Record, names map[int64]string) []gooseTable {
	all := []gooseTable{}
	for _, r := range records {
		t := gooseTable{r.Table, []gooseVersion{}}
		for _, v := range r.Versions {
			t.Versions = append(t.Versions, gooseVersion{v.Version, v.AppliedAt.UTC(), names[v.Version]})
		}
		all = append(all, t)
	}
	return all
}

// text returns the status as text.
func (s *migrationsStatus) text() string {
	var text strings.Builder
	fmt.Fprintln(&text, "VERSION\tNAME\tAPPLIED")
	for _, m := range s.Migrations {
		applied := "pending"
		if m.Applied {
			applied = cli.Moment(*m.AppliedAt)
		}
		switch {
		case m.Objects == partly:
			applied += ", but partly there: " + listed(migrate.Presence{Missing: m.Missing, Changed: m.Changed}.Wrong())
		case m.Applied && m.Objects == missing:
			applied += ", but missing: " + listed(m.Missing)
		case !m.Applied && m.Objects == present:
			applied = "present, not recorded"
		}
		fmt.Fprintf(&text, "%05d\t%s\t%s\n", m.Version, m.Name, applied)
	}
	if s.Elsewhere {
		fmt.Fprintf(&text, "\n%s does not record what exists: another tool ran these migrations, such as goose\n"+
			"with exported files, or psql with printed SQL. Run later ones in that way too, not with up.\n", s.Record)
	}
	for _, t := range s.Goose {
		if len(t.Versions) == 0 {
			fmt.Fprintf(&text, "\n%s of goose records no version\n", t.Table)
			continue
		}
		fmt.Fprintf(&text, "\n%s of goose records:\n\n", t.Table)
		for _, v := range t.Versions {
			name := ""
			if v.Name != "" {
				name = "\tpglimit " + v.Name
			}
			fmt.Fprintf(&text, "%05d\t%s%s\n", v.Version, cli.Moment(v.AppliedAt), name)
		}
	}
	if s.Cluster != nil {
		fmt.Fprintf(&text, "\n%s\n", s.Cluster.Summary())
	}
	return cli.Aligned(text.String())
}

// listed returns at most three names and how many more there are.
func listed(names []string) string {
	if more := len(names) - 3; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), more)
	}
	return strings.Join(names, ", ")
}
