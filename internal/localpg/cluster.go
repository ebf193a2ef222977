package localpg

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pglimit/pglimit/internal/localpg/process"
)

const (
	superuser    = "postgres"
	passwordFile = "pglimit.password" // in the data directory
)

// findPrograms sets bindir and version.
func (s *Server) findPrograms(o Options) (err error) {
	if o.BinDir != "" {
		s.bindir = o.BinDir
		if s.version, err = serverVersion(o.BinDir); err != nil {
			return fmt.Errorf("PostgreSQL in %s: %w", o.BinDir, err)
		}
		return nil
	}
	major := ""
	if o.DataDir != "" {
		if major, err = DataMajor(o.DataDir); err != nil {
			return err
		}
	}
	s.bindir, s.version, err = FindMajor(major)
	return err
}

// DataMajor returns the major version of the data in dir, or "" if there are none.
func DataMajor(dir string) (string, error) {
	version, err := os.ReadFile(filepath.Join(dir, "PG_VERSION"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return strings.TrimSpace(string(version)), nil
}

// prepare creates the run directory and, if needed, the data directory. It starts the
// reaper that removes the run directory.
func (s *Server) prepare(ctx context.Context, dataDir string) (err error) {
	isNew, err := missingOrEmpty(dataDir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if !isNew {
		password, err := os.ReadFile(filepath.Join(dataDir, passwordFile))
		if err != nil {
			return fmt.Errorf("data directory %s was not made by pglimit: name an empty one: %w", dataDir, err)
		}
		s.password = strings.TrimSpace(string(password))
	}
	if s.account, err = process.RunAs(dataDir, isNew); err != nil {
		return err
	}
	if s.runDir, err = os.MkdirTemp(s.account.TempDir(), "pglimit-pg-"); err != nil {
		return err
	}
	if s.reaper, err = process.StartReaper(s.runDir); err != nil {
		return fmt.Errorf("start the reaper: %w", err)
	}
	if err := s.account.Own(s.runDir); err != nil {
		return err
	}
	if dataDir == "" {
		s.dataDir = filepath.Join(s.runDir, "data")
		return s.initdb(ctx, "--no-sync")
	}
	if s.dataDir, err = filepath.Abs(dataDir); err != nil {
		return err
	}
	if err := s.account.Reach(s.dataDir); err != nil {
		return err
	}
	if !isNew {
		return nil
	}
	return s.create(ctx)
}

// create creates the data directory. It gets its name only when it is complete, so that
// the remains of a killed process or a full disk are never used as data.
func (s *Server) create(ctx context.Context) (err error) {
	final := s.dataDir
	s.dataDir = final + ".new"
	if err := os.RemoveAll(s.dataDir); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dataDir, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(s.dataDir) // the first error is the one to report
		}
	}()
	if err := s.account.Own(s.dataDir); err != nil {
		return err
	}
	if err := s.initdb(ctx); err != nil {
		return err
	}
	if err := os.Remove(final); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(s.dataDir, final); err != nil {
		return err
	}
	s.dataDir = final
	return nil
}

// missingOrEmpty reports whether dir must be initialized.
func missingOrEmpty(dir string) (bool, error) {
	if dir == "" {
		return true, nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return len(entries) == 0, err
}

// initdb initializes the data directory and sets the superuser's password. The socket,
// which only the server's user can reach, needs no password.
func (s *Server) initdb(ctx context.Context, extra ...string) error {
	secret := make([]byte, 16)
	rand.Read(secret) // never fails
	s.password = hex.EncodeToString(secret)
	given := filepath.Join(s.runDir, "password")
	if err := s.writeSecret(given); err != nil {
		return err
	}
	args := append([]string{
		"-D", s.dataDir, "-U", superuser, "--pwfile", given,
		"--auth-local=trust", "--auth-host=scram-sha-256",
		"--encoding=UTF8", "--no-locale",
	}, extra...)
	cmd := exec.CommandContext(ctx, executable(s.bindir, "initdb"), args...)
	s.inherit(cmd)
	s.account.Apply(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("initdb of PostgreSQL %s: %w:\n%s", s.version, err, complaints(out))
	}
	if err := os.Remove(given); err != nil {
		return err
	}
	return s.writeSecret(filepath.Join(s.dataDir, passwordFile))
}

// complaints returns the error messages of a program's output, or all of it if there
// are none.
func complaints(out []byte) string {
	var b strings.Builder
	for line := range strings.Lines(string(out)) {
		for _, mark := range []string{"error:", "detail:", "hint:", "FATAL:", "PANIC:", "ERROR:", "DETAIL:", "HINT:"} {
			if strings.Contains(line, mark) {
				b.WriteString(line)
				break
			}
		}
	}
	if b.Len() == 0 {
		return string(out)
	}
	return b.String()
}

func (s *Server) writeSecret(path string) error {
	if err := os.WriteFile(path, []byte(s.password+"\n"), 0o600); err != nil {
		return err
	}
	return s.account.Own(path)
}

// inherit sets the working directory and environment of a PostgreSQL program: ours, with
// messages in English and without PostgreSQL's variables, which would change its work.
func (s *Server) inherit(cmd *exec.Cmd) {
	cmd.Dir = s.runDir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "LC_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C")
}
