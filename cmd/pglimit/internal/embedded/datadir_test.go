package embedded

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
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
	dir := must.OK(prepare(path))(t)
	must.Succeed(t, dir.WriteState(State{URL: "postgres://pglimit:hunter2@localhost/pglimit"}))
	log := must.OK(dir.OpenLog())(t)
	must.Succeed(t, log.Close())
	for name, others := range map[string]os.FileMode{stateFile: 0o077, "keeper.log": 0o077, ".": 0o022} {
		info := must.OK(os.Stat(filepath.Join(path, name)))(t)
		if mode := info.Mode().Perm(); mode&others != 0 {
			t.Errorf("%s has mode %o", name, mode)
		}
	}
}
