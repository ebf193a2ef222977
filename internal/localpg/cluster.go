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
	"regexp"
	"strings"

	"github.com/pglimit/pglimit/internal/localpg/process"
)

const (
	superuser    = "postgres"
	passwordFile = "pglimit.password" // in the data directory
	givenFile    = "password"         // in the run directory, for initdb
)

// findPrograms sets bindir and version.
func (s *Server) findPrograms(o Options) (err error) {
	if o.BinDir == "" {
		s.bindir, s.version, err = Find("")
		return err
	}
	s.bindir = o.BinDir
	if s.version, err = serverVersion(o.BinDir); err != nil {
		return fmt.Errorf("PostgreSQL in %s: %w", o.BinDir, err)
	}
	return nil
}

var majorPattern = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// DataMajor returns the major version of the data in dir, or "" if there are none.
func DataMajor(dir string) (string, error) {
	version, err := readIn(dir, "PG_VERSION", nil)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !majorPattern.MatchString(version) {
		return "", fmt.Errorf("%s holds no version: restore it, or name another directory", filepath.Join(dir, "PG_VERSION"))
	}
	return version, nil
}

// prepare creates the run directory and, if needed, the data directory. It starts the
// reaper that removes the run directory.
func (s *Server) prepare(ctx context.Context, dataDir string) (err error) {
	isNew, err := missingOrEmpty(dataDir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if !isNew {
		if _, err := os.Lstat(filepath.Join(dataDir, passwordFile)); err != nil {
			return notOurs(dataDir, err)
		}
	}
	if s.account, err = process.RunAs(dataDir, isNew); err != nil {
		return err
	}
	if isNew {
		secret := make([]byte, 16)
		rand.Read(secret) // never fails
		s.password = hex.EncodeToString(secret)
	} else if s.password, err = readIn(dataDir, passwordFile, s.account); err != nil {
		return notOurs(dataDir, err)
	}
	if err := s.createRunDir(isNew); err != nil {
		return err
	}
	if s.reaper, err = process.StartReaper(s.runDir, s.account); err != nil {
		return fmt.Errorf("start the reaper: %w", err)
	}
	if dataDir == "" {
		s.dataDir = filepath.Join(s.runDir, "data")
		return s.initdb(ctx, "--no-sync")
	}
	s.dataDir = dataDir
	if err := s.account.Reach(s.dataDir); err != nil {
		return err
	}
	if !isNew {
		return nil
	}
	return s.create(ctx)
}

func notOurs(dataDir string, err error) error {
	return fmt.Errorf("data directory %s was not made by pglimit: name an empty one: %w", dataDir, err)
}

// create creates the data directory. It gets its name only when it is complete, so that
// the remains of a killed process or a full disk are never used as data.
func (s *Server) create(ctx context.Context) (err error) {
	final := s.dataDir
	parent, err := os.OpenRoot(filepath.Dir(final))
	if err != nil {
		return err
	}
	defer parent.Close()
	name := filepath.Base(final)
	s.dataDir = final + ".new"
	if err := parent.RemoveAll(name + ".new"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = parent.RemoveAll(name + ".new") // the first error is the one to report
		}
	}()
	if err := parent.Mkdir(name+".new", 0o700); err != nil {
		return err
	}
	dir, err := parent.Open(name + ".new")
	if err != nil {
		return err
	}
	err = s.account.Own(dir)
	if err = errors.Join(err, dir.Close()); err != nil {
		return err
	}
	if err := s.initdb(ctx); err != nil {
		return err
	}
	if err := parent.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := parent.Rename(name+".new", name); err != nil {
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
	args := append([]string{
		"-D", s.dataDir, "-U", superuser, "--pwfile", filepath.Join(s.runDir, givenFile),
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
	if err := s.run.Remove(givenFile); err != nil {
		return err
	}
	return s.keepPassword(ctx)
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
