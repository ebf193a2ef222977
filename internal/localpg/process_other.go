//go:build !unix

package localpg

import (
	"context"
	"os"
	"os/exec"
)

// On systems other than Unix the server runs as our own user, outlives a
// crash of this process, and pg_ctl ends it.

type account struct{}

func runAs(string, bool) (*account, error) { return nil, nil }
func (*account) apply(*exec.Cmd)           {}
func (*account) own(string) error          { return nil }
func (*account) reach(string) error        { return nil }
func (*account) tempDir() string           { return os.TempDir() }
func detach(*exec.Cmd)                     {}

type reaper struct{}

func startReaper(string) (*reaper, error) { return nil, nil }
func (*reaper) watch(int)                 {}
func (*reaper) close()                    {}

func (s *Server) requestStop(ctx context.Context) error {
	return exec.CommandContext(ctx, executable(s.bindir, "pg_ctl"), "stop", "-D", s.dataDir, "-m", "fast").Run()
}

// killTree ends the postmaster; its children end when they notice.
func (p *process) killTree() error {
	if p.ended() {
		return nil
	}
	err := p.cmd.Process.Kill()
	<-p.done
	return err
}
