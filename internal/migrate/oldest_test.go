package migrate

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

// newer matches SQL that PostgreSQL 13 does not have. make test-matrix runs everything on
// 13, but not on each change: this finds the usual cases at once. Views and columns of the
// catalogue that came later are not in it.
var newer = regexp.MustCompile(`(?i)\b(?:` + strings.Join([]string{
	// Functions of 14, 15, 16, 17 and 18.
	`(?:date_bin|bit_count|trim_array|string_to_table|unistr|range_intersect_agg|range_agg|multirange|pg_log_backend_memory_contexts)\s*\(`,
	`(?:regexp_count|regexp_instr|regexp_like|regexp_substr|pg_stat_force_next_flush|has_parameter_privilege|pg_stat_have_stats)\s*\(`,
	`(?:any_value|array_sample|array_shuffle|random_normal|date_add|date_subtract|pg_input_is_valid|pg_input_error_info|pg_split_walfile_name)\s*\(`,
	`(?:to_bin|to_oct|uuid_extract_timestamp|uuid_extract_version|pg_basetype|json_table|json_query|json_value|json_exists|json_scalar|json_serialize|json_array|json_object)\s*\(`,
	`(?:array_reverse|array_sort|casefold|uuidv4|uuidv7|pg_get_acl)\s*\(`,
	// Syntax.
	`merge\s+into`, `nulls\s+not\s+distinct`, `begin\s+atomic`, `security_invoker`, `returning\s+(?:old|new)\.`, `returning\s+with\s*\(`,
	`search\s+(?:depth|breadth)\s+first`, `cycle\s+\w+\s+set`, `toast_compression`, `group\s+by\s+distinct`,
}, "|") + `)`)

// TestSQLOfTheOldestVersion: no statement of the library, the command, the janitor or the
// doctor uses what PostgreSQL 13 lacks.
func TestSQLOfTheOldestVersion(t *testing.T) {
	t.Parallel()
	files := 0
	for _, dir := range []string{"queries", "db", "limiter", "janitor", "doctor", "internal", "cmd"} {
		must.Succeed(t, filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".sql") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files++
			for i, line := range strings.Split(string(text), "\n") {
				if found := newer.FindString(line); found != "" {
					t.Errorf("%s:%d: %q is newer than PostgreSQL 13: %s", path, i+1, found, strings.TrimSpace(line))
				}
			}
			return nil
		}))
	}
	if files < 100 {
		t.Errorf("only %d files were read", files)
	}
}
