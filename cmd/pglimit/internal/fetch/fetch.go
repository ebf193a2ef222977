// Package fetch downloads a PostgreSQL server. It uses an archive only if that has the
// SHA-256 in the source, and runs nothing of it.
package fetch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/localpg/process"
)

const (
	defaultRepository = "https://repo1.maven.org/maven2"
	// longestArchive is four times the size of the largest archive.
	longestArchive = 256 << 20
	answerTimeout  = 30 * time.Second
)

// Options configures Server.
type Options struct {
	// Major is the major version that is needed, such as "17". Default: any.
	Major string
	// Cache is the directory of downloaded servers.
	Cache string
	// Logf gets a line before a download.
	Logf func(format string, args ...any)
	// Client downloads. Default: one with the system's proxy settings.
	Client *http.Client

	limits limits // default: realLimits
}

// Server returns the directory of a server's programs in the cache, and downloads them if
// they are missing. For root, the account that runs the server can read them.
func Server(ctx context.Context, o Options) (bindir string, err error) {
	if o.limits == (limits{}) {
		o.limits = realLimits
	}
	if o.Major != "" && !strings.HasPrefix(Version, o.Major+".") {
		return "", fmt.Errorf("the data are of PostgreSQL %s, which --download does not support, only %s: install it, or name another --data-dir", o.Major, Version)
	}
	on := platform()
	hash, err := hashOf(on)
	if err != nil {
		return "", err
	}
	from, err := archiveURL(os.Getenv(repositoryEnv), on)
	if err != nil {
		return "", err
	}
	cache, err := prepareCache(o.Cache)
	if err != nil {
		return "", err
	}
	final := filepath.Join(cache, "postgresql-"+Version+"-"+hash[:16])
	if ours, err := isOurs(final); err != nil {
		return "", err
	} else if ours {
		return filepath.Join(final, "bin"), nil
	}
	o.Logf("fetching PostgreSQL %s from %s into %s", Version, from.Redacted(), cache)
	if err := install(ctx, o, from, hash, cache, final); err != nil {
		return "", fmt.Errorf("fetch PostgreSQL %s from %s: %w; %s names another repository", Version, from.Redacted(), err, repositoryEnv)
	}
	return filepath.Join(final, "bin"), nil
}

// install downloads an archive, checks it and unpacks it to final.
func install(ctx context.Context, o Options, from *url.URL, hash, cache, final string) (err error) {
	work, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	archive, err := os.OpenFile(filepath.Join(work, "archive"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer archive.Close()
	size, err := download(ctx, cmp.Or(o.Client, &http.Client{}), from, archive, hash, o.limits.archive)
	if err != nil {
		return err
	}
	server := filepath.Join(work, "server")
	if err := os.Mkdir(server, dirMode()); err != nil {
		return err
	}
	if err := unpack(ctx, archive, size, server, o.limits); err != nil {
		return fmt.Errorf("unpack the archive: %w", err)
	}
	// If another process downloads the same version, the first to finish wins.
	if err := os.Rename(server, final); err != nil {
		if ours, e := isOurs(final); e != nil || !ours {
			return err
		}
	}
	return nil
}

// archiveURL returns the address of a platform's archive.
func archiveURL(repository, platform string) (*url.URL, error) {
	u, err := url.Parse(cmp.Or(strings.TrimSuffix(repository, "/"), defaultRepository))
	if err != nil || u.Scheme != "https" || u.Host == "" || strings.Contains(u.Path, "@") || u.RawQuery != "" || u.Fragment != "" {
		// Any part of what is not a URL may be the password.
		return nil, fmt.Errorf("%s is not an https URL: use a form such as %s; in a password write @ as %%40, / as %%2F, ? as %%3F, # as %%23 and %% as %%25", repositoryEnv, defaultRepository)
	}
	name := "embedded-postgres-binaries-" + platform
	return u.JoinPath("io/zonky/test/postgres", name, Version, name+"-"+Version+".jar"), nil
}

// download copies what is at the address from into a file, and returns its size. It fails
// unless the SHA-256 is hash.
func download(ctx context.Context, client *http.Client, from *url.URL, to io.Writer, hash string, longest int64) (int64, error) {
	withHTTPS := *client
	withHTTPS.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		if next.URL.Scheme != "https" {
			return fmt.Errorf("it redirects to %s, which is not https", next.URL.Redacted())
		}
		if len(via) >= 5 {
			return errors.New("it redirects more than five times")
		}
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(answerTimeout, func() { cancel(fmt.Errorf("no answer within %v", answerTimeout)) })
	defer late.Stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from.String(), nil)
	if err != nil {
		return 0, err
	}
	response, err := withHTTPS.Do(request)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // it repeats the address
		}
		return 0, cmp.Or(context.Cause(ctx), err)
	}
	late.Stop()
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the answer is %s", response.Status)
	}
	sum := sha256.New()
	size, err := io.Copy(io.MultiWriter(to, sum), io.LimitReader(response.Body, longest+1))
	if err != nil {
		return 0, err
	}
	if size > longest {
		return 0, fmt.Errorf("the archive is larger than %d bytes", longest)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != hash {
		return 0, fmt.Errorf("the archive has the SHA-256 %s, not %s: it is not the one that was published, so it was deleted", got, hash)
	}
	return size, nil
}

// prepareCache creates the directory of downloaded servers. For root nobody else may be
// able to change it, and the account that runs the server can enter it.
func prepareCache(dir string) (string, error) {
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("the cache for --download: %w; XDG_CACHE_HOME names another directory", err)
	}
	dir, err := process.Trusted(dir)
	if err != nil {
		return fail(err)
	}
	if err := os.MkdirAll(dir, dirMode()); err != nil {
		return fail(err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fail(err)
	}
	if !(*process.Account)(nil).Owns(info) {
		return fail(fmt.Errorf("%s belongs to another user", dir))
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&0o022 != 0 {
		return fail(fmt.Errorf("%s may be changed (mode %04o) by other users: run chmod go-w on it", dir, mode))
	}
	return dir, nil
}

// isOurs reports whether dir is there. It returns an error if it is no directory or
// belongs to another user.
func isOurs(dir string) (bool, error) {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !info.IsDir() || !(*process.Account)(nil).Owns(info) {
		return false, fmt.Errorf("%s is no directory of yours: remove it", dir)
	}
	return true, nil
}

// dirMode returns the mode of directories. For root another account reads them.
func dirMode() fs.FileMode {
	if os.Geteuid() == 0 {
		return 0o755
	}
	return 0o700
}

// fileMode returns the mode of files.
func fileMode(executable bool) fs.FileMode {
	mode := fs.FileMode(0o644)
	if executable {
		mode = 0o755
	}
	return mode & dirMode()
}
