package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// ErrUnusable is in Join's error when the directory cannot serve: it is no
// directory, somebody else's, or holds something else.
var ErrUnusable = errors.New("cannot serve as data directory")

// Home is where the data go unless the user says otherwise: the system's
// place for a user's data. Root's is outside its home, which the user as whom
// PostgreSQL runs then cannot enter.
func Home() (string, error) {
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "pglimit"), nil
	}
	if os.Geteuid() == 0 {
		return "/var/lib/pglimit", nil
	}
	switch runtime.GOOS {
	case "windows":
		dir, err := os.UserCacheDir() // %LocalAppData%
		return filepath.Join(dir, "pglimit"), err
	case "darwin":
		dir, err := os.UserConfigDir() // ~/Library/Application Support
		return filepath.Join(dir, "pglimit"), err
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".local", "share", "pglimit"), err
}

// prepareDir makes dir or sees that it is ours, and returns it as an absolute
// path.
func prepareDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	// For root, others have to get through it: the server runs as one of them.
	mode := fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o755
	}
	if err := os.MkdirAll(dir, mode); errors.Is(err, syscall.ENOSPC) {
		return "", err
	} else if err != nil {
		return "", unusable(dir, err.Error())
	}
	if err := ours(dir); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", unusable(dir, err.Error())
	}
	foreign := ""
	for _, e := range entries {
		switch e.Name() {
		case filepath.Base(usersLock(dir).Path()):
			return dir, nil
		case "lost+found": // in each new file system
		default:
			foreign = e.Name()
		}
	}
	if foreign != "" {
		return "", unusable(dir, fmt.Sprintf("it holds something else (%s): name an empty or new directory", foreign))
	}
	return dir, os.Chmod(dir, mode) // others may not write there
}

func unusable(dir, why string) error {
	return fmt.Errorf("%s %w: %s", dir, ErrUnusable, why)
}
