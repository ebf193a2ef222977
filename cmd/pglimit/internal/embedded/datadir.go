package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/gofrs/flock"

	"github.com/pglimit/pglimit/internal/localpg/process"
)

// ErrUnusable is in prepare's error if the path is not a directory, or the
// directory belongs to another user or has other content.
var ErrUnusable = errors.New("cannot be used as data directory")

// Home returns the default directory for data: the system's place for a user's
// data. Root's is outside its home directory, because the user that then runs
// PostgreSQL cannot enter that.
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

// prepare creates dir, or checks that it is one of ours. It returns dir as an
// absolute path.
func prepare(dir string) (Dir, error) {
	path, err := process.Trusted(filepath.Dir(filepath.Clean(dir)))
	if err != nil {
		return "", unusable(dir, err.Error())
	}
	dir = filepath.Join(path, filepath.Base(filepath.Clean(dir)))
	// If root runs this, the server runs as another user, who must pass through.
	mode := fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o711
	}
	if err := os.MkdirAll(dir, mode); errors.Is(err, syscall.ENOSPC) {
		return "", err
	} else if err != nil {
		return "", unusable(dir, err.Error())
	}
	if owner, err := foreignOwner(dir); err != nil {
		return "", err
	} else if owner != "" {
		return "", unusable(dir, fmt.Sprintf("it belongs to user %s: run as that user, or name another directory", owner))
	}
	if _, err := process.Trusted(dir); err != nil { // it may have been there before
		return "", unusable(dir, err.Error())
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", unusable(dir, err.Error())
	}
	foreign := ""
	for _, e := range entries {
		switch e.Name() {
		case usersLock:
			return Dir(dir), nil
		case "lost+found": // in each new file system
		default:
			foreign = e.Name()
		}
	}
	if foreign != "" {
		return "", unusable(dir, fmt.Sprintf("it has other content (%s): name an empty or new directory", foreign))
	}
	return Dir(dir), os.Chmod(dir, mode) // no other user may write there
}

func unusable(dir, why string) error {
	return fmt.Errorf("%s %w: %s", dir, ErrUnusable, why)
}

// Dir is the path of a directory with the locks, server.json and the data.
type Dir string

const (
	usersLock  = "users.lock"
	keeperLock = "keeper.lock"
	stateFile  = "server.json"
)

// Users returns the lock that the users of the server share.
func (d Dir) Users() *flock.Flock { return d.lock(usersLock) }

// Keeper returns the lock of the process that runs the server.
func (d Dir) Keeper() *flock.Flock { return d.lock(keeperLock) }

func (d Dir) lock(name string) *flock.Flock {
	return flock.New(filepath.Join(string(d), name), flock.SetFlag(openFlags))
}

// Data returns the server's data directory.
func (d Dir) Data() string { return filepath.Join(string(d), "data") }

// Password returns the file with the password of a server in a container.
func (d Dir) Password() string { return filepath.Join(string(d), "password") }

// OpenLog opens the keeper's log for appending.
func (d Dir) OpenLog() (*os.File, error) {
	return os.OpenFile(filepath.Join(string(d), "keeper.log"), os.O_APPEND|openFlags, 0o600)
}

// State is the content of server.json.
type State struct {
	Keeper  int    `json:"keeper"` // process ID
	URL     string `json:"url"`
	Version string `json:"version"`
}

func (d Dir) stateFile() string { return filepath.Join(string(d), stateFile) }

// ReadState reads server.json.
func (d Dir) ReadState() (s State, _ error) {
	text, err := os.ReadFile(d.stateFile())
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(text, &s)
}

// RemoveState removes server.json.
func (d Dir) RemoveState() error {
	err := os.Remove(d.stateFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// WriteState replaces server.json atomically. The file has the server's password,
// so only the directory's owner can read it.
func (d Dir) WriteState(s State) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(string(d), stateFile+".*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), d.stateFile())
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
