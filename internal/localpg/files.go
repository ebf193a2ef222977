package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pglimit/pglimit/internal/localpg/process"
)

// If this process is root, the run directory and the data belong to another account, which
// can put a link in the place of any of their files. So root opens the run directory and
// the log once, before it gives them away, and writes nothing below them by a path.

const logFile = "postgres.log" // in the run directory

// createRunDir creates the run directory with the log and, for new data, the password for
// initdb, and gives all to the account. Others cannot enter it.
func (s *Server) createRunDir(isNew bool) error {
	temp, err := s.account.TempDir(s.socketFits)
	if err != nil {
		return err
	}
	if s.runDir, err = os.MkdirTemp(temp, runPrefix); err != nil {
		return err
	}
	if s.run, err = os.OpenRoot(s.runDir); err != nil {
		return err
	}
	dir, err := s.run.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	if info, err := dir.Stat(); err != nil {
		return err
	} else if !(*process.Account)(nil).Owns(info) || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s was replaced while it was created: set TMPDIR to a directory that only you can change", s.runDir)
	}
	if s.log, err = s.run.OpenFile(logFile, os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if isNew {
		given, err := s.run.OpenFile(givenFile, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = given.WriteString(s.password + "\n")
		if err = errors.Join(err, s.account.Own(given), given.Close()); err != nil {
			return err
		}
	}
	return errors.Join(s.account.Own(s.log), s.account.Own(dir))
}

// removeRunDir removes the run directory with all in it.
func (s *Server) removeRunDir() error {
	if s.runDir == "" {
		return nil
	}
	var err error
	if s.log != nil {
		err = s.log.Close()
	}
	if s.run != nil {
		err = errors.Join(err, s.run.Close())
	}
	return errors.Join(err, os.RemoveAll(s.runDir)) // follows no links
}

// keepPassword writes the password into the data directory. For root the account does it.
func (s *Server) keepPassword(ctx context.Context) error {
	if s.account == nil {
		f, err := os.OpenFile(filepath.Join(s.dataDir, passwordFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = f.WriteString(s.password + "\n")
		return errors.Join(err, f.Close())
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `umask 077 && set -C && cat >"$1"`, "pglimit-password", filepath.Join(s.dataDir, passwordFile))
	s.inherit(cmd)
	s.account.Apply(cmd)
	cmd.Stdin = strings.NewReader(s.password + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("write %s: %w: %s", filepath.Join(s.dataDir, passwordFile), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// readIn returns the text of a small file in dir, without white space around it. The file
// must be a regular one and belong to the account, unless that is nil and this process is
// root; so root is not led to a file that the account may not read.
func readIn(dir, name string, account *process.Account) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|nonBlocking, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	inDir, err := root.Lstat(name)
	if err != nil {
		return "", err
	}
	if !inDir.Mode().IsRegular() || !os.SameFile(info, inDir) || account != nil && !account.Owns(info) {
		return "", fmt.Errorf("%s is not a file of the server's user: remove it", filepath.Join(dir, name))
	}
	const longest = 4096
	text, err := io.ReadAll(io.LimitReader(f, longest))
	return strings.TrimSpace(string(text)), err
}
