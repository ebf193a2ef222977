package docker

import "testing"

func TestOrphans(t *testing.T) {
	t.Parallel()
	label := ownerLabels()[ownerLabel]
	cases := map[string]bool{
		label:                   false, // this process runs
		"elsewhere/pid:[1]/2/3": false, // another system's process, which may run
		"":                      false,
	}
	if label != "" { // this system identifies processes
		cases[label+"1"] = true             // another process with our ID, started at another time
		cases[system()+"/4194305/1"] = true // above the largest ID
	}
	for other, want := range cases {
		if got := orphaned(other); got != want {
			t.Errorf("orphaned(%q) = %v, want %v", other, got, want)
		}
	}
}
