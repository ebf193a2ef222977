//go:build !unix

package embedded

import (
	"os"
	"os/exec"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/embedded/datadir"
)

func ownSession(*exec.Cmd)              {}
func terminate(keeper *os.Process) bool { return keeper.Kill() == nil }
func stopKeeper(datadir.Dir) bool       { return false } // releasing users.lock is enough
