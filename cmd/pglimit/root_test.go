package main

import "testing"

// TestOneDefaultAlgorithm: every command with an --algorithm has the same
// default, so that they mean the same row of a key. Only wait differs: other
// algorithms have no queue to wait in.
func TestOneDefaultAlgorithm(t *testing.T) {
	t.Parallel()
	root, _ := newRoot()
	with := 0
	for _, cmd := range root.Commands() {
		flag := cmd.Flags().Lookup("algorithm")
		if flag == nil {
			continue
		}
		with++
		want := "token_bucket"
		if cmd.Name() == "wait" {
			want = "leaky_bucket_queue"
		}
		if flag.DefValue != want || flag.Value.String() != want {
			t.Errorf("%s: --algorithm is %s by default, want %s", cmd.Name(), flag.DefValue, want)
		}
	}
	if with < 11 {
		t.Errorf("only %d commands have --algorithm", with)
	}
}
