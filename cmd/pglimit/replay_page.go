package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pglimit/pglimit/internal/replay"
)

// checkPage tells before the log is read what would keep the page from being
// written: name has to be of a regular file or of none yet, in a directory that
// can be written to, and not the log.
func checkPage(name, log string) error {
	switch name {
	case "":
		return errors.New("--html is empty: name a file")
	case "-":
		return errors.New("--html is -: name a file; the report for people, or that of --json, goes to standard output")
	}
	at, err := os.Stat(name)
	switch {
	case err == nil && !at.Mode().IsRegular():
		return fmt.Errorf("--html is %s: that is no regular file", name)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--html: %w", err)
	}
	if read, err := os.Stat(log); err == nil && os.SameFile(at, read) {
		return fmt.Errorf("--html is %s: that is the log itself; name another file", name)
	}
	probe, err := besidePage(name)
	if err != nil {
		return err
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// writePage writes the page to a file beside its own and renames that, so that
// nobody finds half of it.
func writePage(name string, r *replay.Report) error {
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target // a link stays one
	}
	file, err := besidePage(name)
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

// besidePage makes a new file in the directory of name, of the mode that any new
// file has.
func besidePage(name string) (*os.File, error) {
	file, err := os.OpenFile(name+"."+rand.Text()+".tmp", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, fmt.Errorf("--html is %s: cannot write there: %w", name, errors.Unwrap(err))
	}
	return file, nil
}
