//go:build !unix

package process

import (
	"context"
	"os"
	"os/exec"
)

// On systems other than Unix the server runs as our user and survives a crash of this
// process. pg_ctl stops it.

// Account is our user.
type Account struct{}

// RunAs returns our user.
func RunAs(string, bool) (*Account, error) { return nil, nil }

// Apply does nothing.
func (*Account) Apply(*exec.Cmd) {}

// Own does nothing.
func (*Account) Own(*os.File) error { return nil }

// Owns returns true.
func (*Account) Owns(os.FileInfo) bool { return true }

// Reach does nothing.
func (*Account) Reach(string) error { return nil }

// TempDir returns the system's directory for temporary files.
func (*Account) TempDir(func(dir string) bool) (string, error) { return os.TempDir(), nil }

// Trusted returns path.
func Trusted(path string) (string, error) { return path, nil }

func detach(*exec.Cmd) {}

// Reaper does nothing.
type Reaper struct{}

// StartReaper starts nothing.
func StartReaper(string, *Account) (*Reaper, error) { return nil, nil }

// Watch does nothing.
func (*Reaper) Watch(int) {}

// Close does nothing.
func (*Reaper) Close() {}

// RequestStop requests PostgreSQL's fast shutdown.
func (*Process) RequestStop(ctx context.Context, pgCtl, dataDir string) error {
	return exec.CommandContext(ctx, pgCtl, "stop", "-D", dataDir, "-m", "fast").Run()
}

// KillTree ends the postmaster; its children end when they notice.
func (p *Process) KillTree() error {
	if p.Ended() {
		return nil
	}
	err := p.cmd.Process.Kill()
	<-p.done
	return err
}
