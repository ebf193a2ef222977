package policies

import (
	"errors"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestOverridesOfBalances: an override of a balance blocks, lets pass or shadows. One that sets a
// limit is refused with the field's name.
func TestOverridesOfBalances(t *testing.T) {
	t.Parallel()
	live := must.OK(New(limiter.Policy{Name: "credits", Algorithm: limiter.Balance}))(t)
	five, on := 5.0, true
	for field, o := range map[string]Override{
		"":       {Blocked: true},
		"Limit":  {Limit: &five},
		"Factor": {Factor: &five},
		"Burst":  {Burst: &five, Shadow: &on},
	} {
		o.Policy, o.Key = "credits", "k"
		_, err := live.Apply(t.Context(), Edit{SetOverrides: []Override{o}})
		if bad := errors.Is(err, limiter.ErrInvalid) && strings.Contains(err.Error(), "Override."+field+" 5"); bad != (field != "") {
			t.Errorf("%q: %v", field, err)
		}
	}
	for range 20 { // of several the first is named
		_, err := live.Apply(t.Context(), Edit{SetOverrides: []Override{{Policy: "credits", Key: "k", Limit: &five, Burst: &five}}})
		if err == nil || !strings.Contains(err.Error(), "Override.Limit 5") {
			t.Error(err)
		}
	}
}
