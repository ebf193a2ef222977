package connect

import (
	"testing"

	"github.com/spf13/cobra"
)

func TestEmbeddedServerCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args      []string
		other     bool // a database URL is given
		byDefault bool
		want      string // "": no error
	}{
		{nil, false, false, ""},
		{nil, true, false, ""},
		{[]string{"--embedded"}, false, false, ""},
		{[]string{"--embedded", "--download"}, false, false, ""},
		{[]string{"--data-dir=d", "--download"}, false, false, ""},
		{[]string{"--download"}, false, true, ""},
		{[]string{"--download"}, false, false, "--download downloads a server to run: pass --embedded or --data-dir with it"},
		{[]string{"--data-dir="}, false, true, "--data-dir is empty: name a directory"},
		{[]string{"--embedded"}, true, false, "--database-url and --embedded are both given: use one of them"},
		{[]string{"--embedded", "--data-dir=d"}, true, false, "--database-url and --data-dir are both given: use one of them"},
		{[]string{"--download"}, true, true, "--database-url and --download are both given: use one of them"},
	} {
		var s embeddedServer
		cmd := &cobra.Command{}
		s.register(cmd.Flags())
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := s.check(cmd, c.other, c.byDefault); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q, with a URL %v, by default %v: got %q, want %q", c.args, c.other, c.byDefault, got, c.want)
		}
	}
}
