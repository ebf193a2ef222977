//go:build !unix

package embedded

import (
	"os"
	"os/exec"
)

const openFlags = os.O_CREATE | os.O_RDWR

func foreignOwner(string) (string, error) { return "", nil }
func ownSession(*exec.Cmd)                {}
func terminate(keeper *os.Process) bool   { return keeper.Kill() == nil }
func stopKeeper(Dir) bool                 { return false } // releasing users.lock is enough
