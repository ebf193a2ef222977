package datadir

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// TestStateIsPrivate: only the owner can read server.json and the log, and only the owner
// can write to the directory.
func TestStateIsPrivate(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Log("Windows has no such modes")
		return
	}
	path := filepath.Join(t.TempDir(), "data")
	dir, err := Prepare(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.WriteState(State{URL: "postgres://pglimit:hunter2@localhost/pglimit"}); err != nil {
		t.Fatal(err)
	}
	log, err := dir.OpenLog()
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	for name, others := range map[string]os.FileMode{stateFile: 0o077, "keeper.log": 0o077, ".": 0o022} {
		info, err := os.Stat(filepath.Join(path, name))
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode&others != 0 {
			t.Errorf("%s has mode %o", name, mode)
		}
	}
}
