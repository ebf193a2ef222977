package connect

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/internal/must"
)

func TestDatabaseFlagsCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string // "": no error
	}{
		{nil, ""},
		{[]string{"--database-url=u"}, ""},
		{[]string{"--embedded"}, ""},
		{[]string{"--data-dir="}, "--data-dir is empty: name a directory"},
		{[]string{"--embedded", "--database-url=u"}, "--database-url and --embedded are both given: use one of them"},
		{[]string{"--embedded", "--data-dir=d", "--database-url=u"}, "--database-url and --data-dir are both given: use one of them"},
	} {
		var d Database
		cmd := &cobra.Command{}
		d.Register(cmd.Flags())
		must.Succeed(t, cmd.ParseFlags(c.args))
		got := ""
		if err := d.check(cmd); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q: got %q, want %q", c.args, got, c.want)
		}
	}
}
