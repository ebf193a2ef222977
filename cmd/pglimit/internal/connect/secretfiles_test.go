package connect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

// TestReadSecretFiles: the file that NAME_FILE names has the value of NAME. A file is an error if it
// is missing, empty, too long, or has several lines. So is a value together with a file.
func TestReadSecretFiles(t *testing.T) {
	for name, test := range map[string]struct {
		text  string // of the file; "-": none
		value string // of DATABASE_URL
		want  string
		err   string // a part of the error
	}{
		"one line":      {text: "postgres://app@db/shop\n", want: "postgres://app@db/shop"},
		"Windows":       {text: "postgres://app@db/shop\r\n", want: "postgres://app@db/shop"},
		"no line break": {text: "host=db dbname=shop", want: "host=db dbname=shop"},
		"no file":       {text: "-", err: "DATABASE_URL_FILE: open "},
		"empty":         {text: "\n", err: "must have one line"},
		"long":          {text: strings.Repeat("a", maxSecret+1), err: "at most 65536 bytes"},
		"two lines":     {text: "postgres://a\npostgres://b\n", err: "must have one line"},
		"both":          {text: "postgres://a\n", value: "postgres://b", err: "both set"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "url")
			if test.text != "-" {
				must.Succeed(t, os.WriteFile(path, []byte(test.text), 0o600))
			}
			t.Setenv("DATABASE_URL", test.value)
			t.Setenv("DATABASE_URL_FILE", path)
			values, err := readSecretFiles()
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if got := values["DATABASE_URL"]; got != test.want {
				t.Errorf("DATABASE_URL is %q, want %q", got, test.want)
			}
		})
	}
}
