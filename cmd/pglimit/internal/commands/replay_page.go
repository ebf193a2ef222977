package commands

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
)

// checkPage returns an error if the page cannot be written. It runs before the log
// is read. name must be a regular or new file in a writable directory, and not the
// log.
func checkPage(name, log string) error {
	switch name {
	case "":
		return errors.New("--html is empty: name a file")
	case "-":
		return errors.New("--html is -: name a file; standard output has the report")
	}
	at, err := os.Stat(name)
	switch {
	case err == nil && !at.Mode().IsRegular():
		return fmt.Errorf("--html is %s: that is not a regular file", name)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--html: %w", err)
	}
	if read, err := os.Stat(log); err == nil && os.SameFile(at, read) {
		return fmt.Errorf("--html is %s: that is the log; name another file", name)
	}
	probe, err := createTemp(name)
	if err != nil {
		return err
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// writePage writes the page to a temporary file in the same directory and renames
// it, so that readers never see half a page.
func writePage(name string, r *replay.Report) error {
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target // a link stays a link
	}
	file, err := createTemp(name)
	if err != nil {
		return err
	}
	_, err = page.WriteTo(file)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return fmt.Errorf("--html: %w", err)
	}
	return nil
}

// createTemp creates a new file in the directory of name, with the mode of any new
// file.
func createTemp(name string) (*os.File, error) {
	file, err := os.OpenFile(name+"."+rand.Text()+".tmp", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, fmt.Errorf("--html is %s: cannot write there: %w", name, errors.Unwrap(err))
	}
	return file, nil
}
