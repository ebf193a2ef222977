package connect

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/must"
)

func TestEmbeddedServerCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args  []string
		other bool   // a database URL is given
		want  string // "": no error
	}{
		{nil, false, ""},
		{nil, true, ""},
		{[]string{"--embedded"}, false, ""},
		{[]string{"--data-dir="}, false, "--data-dir is empty: name a directory"},
		{[]string{"--embedded"}, true, "--database-url and --embedded are both given: use one of them"},
		{[]string{"--embedded", "--data-dir=d"}, true, "--database-url and --data-dir are both given: use one of them"},
	} {
		var s embeddedServer
		cmd := &cobra.Command{}
		s.register(cmd.Flags())
		must.Succeed(t, cmd.ParseFlags(c.args))
		got := ""
		if err := s.check(cmd, c.other); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q, with a URL %v: got %q, want %q", c.args, c.other, got, c.want)
		}
	}
}
