package faults

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/localpg"
	"github.com/pglimit/pglimit/internal/must"
)

// roomy is the settings of servers for many connections.
var roomy = map[string]string{"max_connections": "300"}

// openDir makes a directory that the server's user can enter, and removes it after the
// test. The directories of t.TempDir are closed to other users.
func openDir(t *testing.T) string {
	t.Helper()
	dir := must.OK(os.MkdirTemp("", "pglimit-faults-"))(t)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	must.Succeed(t, os.Chmod(dir, 0o755))
	return dir
}

// bindir returns the directory of this machine's server programs.
func bindir(t *testing.T) string {
	t.Helper()
	dir, _, err := localpg.Find("")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// programs makes a directory for localpg.Options.BinDir. Its postgres runs this machine's
// with the environment variables env, and its initdb runs with further arguments.
func programs(t *testing.T, env []string, initdb ...string) string {
	t.Helper()
	real, dir := bindir(t), openDir(t)
	for name, words := range map[string][]string{
		"initdb":   append([]string{filepath.Join(real, "initdb")}, initdb...),
		"postgres": append(append([]string{"env"}, env...), filepath.Join(real, "postgres")),
	} {
		text := "#!/bin/sh\nexec"
		for _, w := range words {
			text += " '" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text+" \"$@\"\n"), 0o755))
	}
	return dir
}

// startServer starts a server that is closed when the test ends. Unless o says otherwise
// it has the settings of a new server: fsync, full_page_writes and synchronous_commit on.
func startServer(t *testing.T, o localpg.Options) *localpg.Server {
	t.Helper()
	s := must.OK(localpg.Start(t.Context(), o))(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// startStandby starts a standby of primary, which streams from it under that name.
func startStandby(t *testing.T, primary *localpg.Server, name string) *localpg.Server {
	t.Helper()
	data := filepath.Join(openDir(t), "data")
	run(t, filepath.Join(bindir(t), "pg_basebackup"), "--pgdata", data, "--write-recovery-conf",
		"--checkpoint=fast", "--dbname", primary.URL()+"&application_name="+name)
	giveAway(t, data, testworld.Value[string](t, testworld.Connect(t, primary.URL()), "SHOW data_directory"))
	return startServer(t, localpg.Options{DataDir: data, Settings: roomy})
}

// giveAway gives dir with all below it to the owner of model, if we are root: servers do
// not run as root.
func giveAway(t *testing.T, dir, model string) {
	t.Helper()
	info := must.OK(os.Stat(model))(t)
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 {
		return
	}
	must.Succeed(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(owner.Uid), int(owner.Gid))
	}))
}

// run runs a program to its end.
func run(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...).CombinedOutput(); err != nil {
		t.Fatal(fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out))
	}
}

// serverOf returns a fault's server.
func serverOf(own *localpg.Server) *server {
	return &server{url: own.URL, kill: func(context.Context) error { return own.Kill() }, restart: own.Restart, local: true}
}
