package ratelimit

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Files are the configuration's files: all of a directory and those below it, one domain each.
// Names that begin with two dots are left out, as Kubernetes makes those for itself.
type Files struct {
	// Root and Subdirectory lead to the directory of AppDirectory.
	Root, Subdirectory, AppDirectory string
	// WatchRoot also reads files beside AppDirectory whose names begin with its name and a dot.
	WatchRoot bool
	// IgnoreDotFiles leaves out files and directories whose names begin with a dot.
	IgnoreDotFiles bool
	// Merge lets several files have parts of one domain.
	Merge bool
}

// Files returns where the environment has the configuration.
func (e *Env) Files() Files {
	return Files{Root: e.Root, Subdirectory: e.Subdirectory, AppDirectory: e.AppDirectory, WatchRoot: e.WatchRoot, IgnoreDotFiles: e.IgnoreDotFiles, Merge: e.MergeDomains}
}

// ReadFrom makes a file, or all files of a directory, the configuration.
func (e *Env) ReadFrom(path string) {
	e.ConfigType, e.Root, e.Subdirectory, e.AppDirectory = "FILE", path, ".", "."
}

// Load reads all files. version differs if their contents do, also after an error.
func (f Files) Load() (c *Config, version string, err error) {
	if f.Root == "" || f.Subdirectory == "" || f.AppDirectory == "" {
		return nil, "", errors.New("the directory of the configuration is not complete: RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY are all needed")
	}
	top, err := filepath.EvalSymlinks(filepath.Join(f.Root, f.Subdirectory)) // once, as it may be swapped
	if err != nil {
		return nil, err.Error(), err
	}
	sum, faults, domains := sha256.New(), []error(nil), []*Domain(nil)
	err = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(top, path)
		hidden := strings.HasPrefix(entry.Name(), "..") || f.IgnoreDotFiles && strings.HasPrefix(entry.Name(), ".")
		below := f.AppDirectory == "." || strings.HasPrefix(name, f.AppDirectory+string(filepath.Separator))
		switch {
		case entry.IsDir() && (hidden && name != "." || name != "." && name != f.AppDirectory && !below):
			return filepath.SkipDir
		case entry.IsDir() || hidden || !below && !(f.WatchRoot && strings.HasPrefix(name, f.AppDirectory+".")):
			return nil
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() { // of a symbolic link
			return nil
		}
		if name == "." { // the file itself
			name = filepath.Base(f.Root)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%d:%s%d:", len(name), name, len(data))
		sum.Write(data)
		d, err := Parse(name, data)
		domains, faults = append(domains, d), append(faults, err)
		return nil
	})
	version = string(sum.Sum(nil))
	if err != nil {
		return nil, version + err.Error(), err
	}
	if err = errors.Join(faults...); err != nil {
		return nil, version, err
	}
	c, err = NewConfig(f.Merge, domains...)
	return c, version, err
}

// Follow reads the files now and at each tick, until ctx ends. What is new is used, unless it is
// not valid.
func (s *Server) Follow(ctx context.Context, f Files, ticks <-chan time.Time) {
	last := "none yet"
	for {
		if c, version, err := f.Load(); version != last {
			s.SetConfig(c, err)
			last = version
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
	}
}
