package pglimittest

import "testing"

// TestCommonServerEnds: it ends once, with its templates, and does not start again.
func TestCommonServerEnds(t *testing.T) {
	t.Parallel()
	var own commonServer
	template, err := own.template()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := own.template(); again != template || err != nil {
		t.Errorf("another template: %v", err)
	}
	for range 2 {
		if err := own.close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := own.template(); err == nil {
		t.Error("it started again")
	}
	if err := new(commonServer).close(); err != nil {
		t.Errorf("one that was not started: %v", err)
	}
}
