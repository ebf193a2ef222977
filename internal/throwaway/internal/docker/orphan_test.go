package docker

import "testing"

func TestOrphans(t *testing.T) {
	t.Parallel()
	label := ownerLabels()[ownerLabel]
	cases := map[string]bool{
		label:                   false, // we live
		"elsewhere/pid:[1]/2/3": false, // another system's, of which we know nothing
		"":                      false,
	}
	if label != "" { // this system tells who is who
		cases[label+"1"] = true             // started at another time: our number, another process
		cases[system()+"/4194305/1"] = true // no number goes as far
	}
	for other, want := range cases {
		if got := orphaned(other); got != want {
			t.Errorf("orphaned(%q) = %v, want %v", other, got, want)
		}
	}
}
