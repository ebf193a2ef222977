package cli

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
)

func TestFailureWrite(t *testing.T) {
	t.Parallel()
	cmd := &cobra.Command{Use: "pglimit"}
	for _, c := range []struct {
		err        error
		code       int
		text, json string
	}{
		{errors.New("pglimit: no: pglimit: such <thing>"), ExitUsage,
			"pglimit: no: such <thing>; see `pglimit --help`", `{"error":"no: such <thing>","code":"usage","exit_code":2,"next_step":"see ` + "`pglimit --help`" + `"}`},
		{errors.New("did you mean this?"), ExitUsage,
			"pglimit: did you mean this? See `pglimit --help`", `{"error":"did you mean this?","code":"usage","exit_code":2,"next_step":"see ` + "`pglimit --help`" + `"}`},
		{errors.New("connect:\n  one\n  two"), ExitDatabase, "pglimit: connect: one; two", `{"error":"connect: one; two","code":"database","exit_code":3}`},
		{errors.New("interrupted"), exitSignal + int(syscall.SIGTERM), "pglimit: interrupted", `{"error":"interrupted","code":"interrupted","exit_code":143}`},
	} {
		var text, json strings.Builder
		f := NewFailure(cmd, c.err, c.code)
		f.Write(&text, false)
		f.Write(&json, true)
		if text.String() != c.text+"\n" || json.String() != c.json+"\n" {
			t.Errorf("%q: got %s and %s", c.err, &text, &json)
		}
	}
}

func TestWantsJSON(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]bool{
		"":                           false,
		"allow k":                    false,
		"allow k --json":             true,
		"--json allow --no":          true,
		"allow --json=true":          true,
		"allow --json=1 k":           true,
		"allow --json=false":         false,
		"allow --json --json=false":  false,
		"allow -- --json":            false,
		"allow --json -- --json=off": true,
		"allow --jsonx":              false,
	} {
		if got := WantsJSON(strings.Fields(args)); got != want {
			t.Errorf("%s: got %v", args, got)
		}
	}
}
