package stranger

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// TestStrangersInDoctor runs every check with all planted objects in the search_path, as a
// role that owns the tables and as one that may only log in. None of the objects is used.
func TestStrangersInDoctor(t *testing.T) {
	t.Parallel()
	address, aside := bed.PlantedDatabase(t)
	owner := bed.Connect(t, address)
	l := bed.NewLimiter(t, owner, nil)
	for _, p := range bed.Variants(10, time.Minute) {
		bed.Must(t)(l.Allow(t.Context(), p, "k"))
	}
	bed.Reserve(t, l, limiter.Policy{Name: "r", Algorithm: limiter.GCRA, Limit: 10, Period: time.Minute}.Request("k", 1), time.Hour)
	role := bed.WithSearchPath(t, bed.RuntimeRole(t, aside), "public")
	for _, url := range []string{address, role} {
		report, err := doctor.Run(t.Context(), bed.Connect(t, url), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range report.Checks {
			text := c.Message + c.Fix + strings.Join(c.Details, " ")
			if strings.Contains(text, "stranger") || strings.Contains(text, "not checked") && !strings.Contains(text, "this role may not read it: permission denied for table") {
				t.Errorf("%+v", c)
			}
		}
	}
}
