package connect_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/must"
)

// TestReadSecretFiles: a variable is set from the file that NAME_FILE names. A file that is
// missing, empty or of several lines is an error, and so is a value beside a file.
func TestReadSecretFiles(t *testing.T) {
	for name, test := range map[string]struct {
		text  string // of the file; "-": none
		value string // of DATABASE_URL before; "": unset
		want  string // of DATABASE_URL after
		err   string // a part of the error
	}{
		"one line":      {text: "postgres://app@db/shop\n", want: "postgres://app@db/shop"},
		"Windows":       {text: "postgres://app@db/shop\r\n", want: "postgres://app@db/shop"},
		"no line break": {text: "host=db dbname=shop", want: "host=db dbname=shop"},
		"no file":       {text: "-", err: "DATABASE_URL_FILE: open "},
		"empty":         {text: "\n", err: "must have one line"},
		"two lines":     {text: "postgres://a\npostgres://b\n", err: "must have one line"},
		"both":          {text: "postgres://a\n", value: "postgres://b", want: "postgres://b", err: "both set"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "url")
			if test.text != "-" {
				must.Succeed(t, os.WriteFile(path, []byte(test.text), 0o600))
			}
			t.Setenv("DATABASE_URL", test.value) // gives it back at the end
			if test.value == "" {
				must.Succeed(t, os.Unsetenv("DATABASE_URL"))
			}
			t.Setenv("DATABASE_URL_FILE", path)
			err := connect.ReadSecretFiles()
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if got := os.Getenv("DATABASE_URL"); got != test.want {
				t.Errorf("DATABASE_URL is %q, want %q", got, test.want)
			}
		})
	}
}
