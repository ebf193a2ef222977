package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// repositoryEnv names the environment variable with the URL of the repository for
// downloads, such as a company's mirror. Default: the library's repository.
const repositoryEnv = "PGLIMIT_DOWNLOAD_URL"

// downloadable lists the versions that --download supports, newest first.
var downloadable = []embeddedpostgres.PostgresVersion{
	embeddedpostgres.V18, embeddedpostgres.V17, embeddedpostgres.V16,
	embeddedpostgres.V15, embeddedpostgres.V14, embeddedpostgres.V13,
}

// download returns the directory of a server's programs in the cache, and downloads
// them if they are missing. An empty major version selects the newest.
func download(ctx context.Context, major string, logf func(string, ...any)) (bindir string, err error) {
	version, err := versionOf(major)
	if err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", fmt.Errorf("find your cache directory, for --download: %w", err)
	}
	final := filepath.Join(cache, "postgresql-"+string(version))
	if _, err := os.Stat(final); err == nil {
		return filepath.Join(final, "bin"), nil
	}
	repository := strings.TrimSuffix(os.Getenv(repositoryEnv), "/")
	from, err := shownRepository(repository)
	if err != nil {
		return "", err
	}
	logf("fetching PostgreSQL %s from %s into %s", version, from, cache)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return "", err
	}
	fetched := make(chan error, 1)
	go func() { fetched <- unpack(version, repository, work) }()
	select {
	case err = <-fetched:
	case <-ctx.Done():
		err = ctx.Err() // the download stops when the program exits
	}
	if err == nil {
		// If another process downloads the same version, the first to finish wins.
		if err = os.Rename(filepath.Join(work, "server"), final); err != nil {
			if _, there := os.Stat(final); there == nil {
				err = nil
			}
		}
	}
	if err = errors.Join(err, os.RemoveAll(work)); err != nil {
		if repository != "" { // the library's errors quote it
			err = errors.New(strings.ReplaceAll(err.Error(), repository, from))
		}
		return "", fmt.Errorf("fetch PostgreSQL %s from %s: %w; %s names another repository", version, from, err, repositoryEnv)
	}
	return filepath.Join(final, "bin"), nil
}

// shownRepository returns a repository's URL without its password, for messages. An error
// quotes nothing, because any part of what is not a URL may be the password.
func shownRepository(repository string) (string, error) {
	if repository == "" {
		return "the default repository", nil
	}
	u, err := url.Parse(repository)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Contains(u.Path, "@") || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%s is not the URL of a repository, such as https://user:password@repository.example/maven2; in a password write @ as %%40, / as %%2F, ? as %%3F, # as %%23 and %% as %%25", repositoryEnv)
	}
	return u.Redacted(), nil
}

// versionOf returns the version to download for a major version. An empty one
// selects the newest.
func versionOf(major string) (embeddedpostgres.PostgresVersion, error) {
	if major == "" {
		return downloadable[0], nil
	}
	for _, version := range downloadable {
		if strings.HasPrefix(string(version), major+".") {
			return version, nil
		}
	}
	return "", fmt.Errorf("the data are of PostgreSQL %s, which --download does not support: install it, or name another --data-dir", major)
}

// unpack downloads a server and unpacks it to work/server. The library can only do
// so as part of starting a server, with the wrong settings and not as root. An
// encoding that initdb refuses stops it right after unpacking.
func unpack(version embeddedpostgres.PostgresVersion, repository, work string) error {
	const nextStep = "unable to init database"
	for _, name := range []string{"TMPDIR", "TMP"} { // otherwise its log stays in the system's directory
		before, set := os.LookupEnv(name)
		_ = os.Setenv(name, work) // fails only for an invalid name
		if set {
			defer os.Setenv(name, before)
		} else {
			defer os.Unsetenv(name)
		}
	}
	config := embeddedpostgres.DefaultConfig()
	if repository != "" {
		config = config.BinaryRepositoryURL(repository)
	}
	server := embeddedpostgres.NewDatabase(config.
		Version(version).
		CachePath(filepath.Join(work, "archive")).
		BinariesPath(filepath.Join(work, "server")).
		RuntimePath(filepath.Join(work, "run")).
		DataPath(filepath.Join(work, "data")).
		Port(0). // checked first; 0 is always free
		Encoding("none: only unpack").
		Logger(io.Discard))
	err := server.Start()
	if err == nil {
		return errors.Join(errors.New("the server was started instead of only unpacked"), server.Stop())
	}
	if !strings.HasPrefix(err.Error(), nextStep) {
		return err
	}
	for _, program := range []string{"initdb", "postgres"} {
		found, _ := filepath.Glob(filepath.Join(work, "server", "bin", program+"*")) // or .exe
		if len(found) == 0 {
			return fmt.Errorf("the download has no %s", program)
		}
	}
	return os.Chmod(filepath.Join(work, "server"), 0o755) // the server may run as another user
}

// cacheDir returns the directory of downloaded servers. For root it is one that the
// user who then runs PostgreSQL can read.
func cacheDir() (string, error) {
	if os.Geteuid() == 0 && os.Getenv("XDG_CACHE_HOME") == "" {
		return "/var/cache/pglimit", nil
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "pglimit"), err
}
