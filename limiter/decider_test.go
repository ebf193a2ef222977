package limiter

import (
	"reflect"
	"testing"
)

var (
	_ Decider = (*Limiter)(nil)
	_ Decider = (*Tx)(nil)
)

// TestDeciderHasAllSharedMethods: a method that both Limiter and Tx have is one of Decider.
func TestDeciderHasAllSharedMethods(t *testing.T) {
	methods := func(t reflect.Type) map[string]bool {
		names := map[string]bool{}
		for m := range t.Methods() {
			names[m.Name] = true
		}
		return names
	}
	all, inTx := methods(reflect.TypeFor[*Limiter]()), methods(reflect.TypeFor[*Tx]())
	shared := methods(reflect.TypeFor[Decider]())
	for name := range all {
		if inTx[name] != shared[name] {
			t.Errorf("%s: of Tx %v, of Decider %v, want the same", name, inTx[name], shared[name])
		}
	}
	if len(shared) < 10 {
		t.Errorf("Decider has only %d methods", len(shared))
	}
}
