package verbs

import (
	"reflect"
	"testing"

	"github.com/pglimit/pglimit/limiter"
)

var (
	_ Limiter = (*limiter.Limiter)(nil)
	_ Limiter = (*limiter.Tx)(nil)
)

// TestLimiterHasAllSharedMethods: a method that both a Limiter and a Tx have is in the
// interface, so that what runs over both can reach it.
func TestLimiterHasAllSharedMethods(t *testing.T) {
	methods := func(t reflect.Type) map[string]bool {
		names := map[string]bool{}
		for m := range t.Methods() {
			names[m.Name] = true
		}
		return names
	}
	all, inTx := methods(reflect.TypeFor[*limiter.Limiter]()), methods(reflect.TypeFor[*limiter.Tx]())
	shared := methods(reflect.TypeFor[Limiter]())
	for name := range all {
		if inTx[name] != shared[name] {
			t.Errorf("%s: of Tx %v, of the interface %v, want the same", name, inTx[name], shared[name])
		}
	}
	if len(shared) < 10 {
		t.Errorf("the interface has only %d methods", len(shared))
	}
}
