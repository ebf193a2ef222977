package docker

import "testing"

func TestOrphans(t *testing.T) {
	t.Parallel()
	label := ownerLabels()[ownerLabel]
	cases := map[string]bool{
		label:                 false, // this process runs
		"elsewhere/pid:[1]/2": false, // another system's process, which may run
		"":                    false,
	}
	if label != "" { // this system identifies processes
		cases[system()+"/4194305"] = true // above the largest ID
	}
	for other, want := range cases {
		if got := orphaned(other); got != want {
			t.Errorf("orphaned(%q) = %v, want %v", other, got, want)
		}
	}
}
