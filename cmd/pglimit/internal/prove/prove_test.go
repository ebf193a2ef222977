package prove

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"For is 0s":        {Workers: 1},
		"For is 25h":       {For: 25 * time.Hour, Workers: 1},
		"Workers is 0":     {For: time.Second},
		"Workers is 1001":  {For: time.Second, Workers: 1001},
		"Workers is -1: u": {For: time.Second, Workers: -1},
	} {
		if err := c.Validate(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q in it", c, err, want)
		}
	}
	if err := (Config{For: 7 * time.Millisecond, Workers: 1}).Validate(); err != nil {
		t.Error(err)
	}
}

// TestReadOnly: the error names the server, the reason and the next step in one line.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	const server = "database app on [::1]:5432"
	for _, c := range []struct {
		standby, readOnly bool
		want              []string
	}{
		{true, false, []string{server, "standby", "target_session_attrs=read-write"}},
		{true, true, []string{server, "standby", "target_session_attrs=read-write"}},
		{false, true, []string{server, "default_transaction_read_only is on (set by: user)", "turn it off"}},
	} {
		err := judgeReadOnly(server, c.standby, c.readOnly, "user")
		for _, want := range c.want {
			if !errors.Is(err, ErrReadOnly) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("standby %v, read-only %v: got %v, want %q in it", c.standby, c.readOnly, err, want)
			}
		}
	}
	if err := judgeReadOnly(server, false, false, "default"); err != nil {
		t.Error(err)
	}
}
