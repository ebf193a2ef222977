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
