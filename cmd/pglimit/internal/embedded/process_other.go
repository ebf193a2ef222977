//go:build !unix

package embedded

import (
	"os"
	"os/exec"
)

const lockFlags = os.O_CREATE | os.O_RDWR

func ownSession(*exec.Cmd)              {}
func ours(string) error                 { return nil }
func terminate(keeper *os.Process) bool { return keeper.Kill() == nil }
func stopKeeper(string) bool            { return false } // releasing users.lock will do
