package connect

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/fetch"
)

// download returns the directory of a server's programs in the cache, and downloads
// them if they are missing. An empty major version selects any.
func download(ctx context.Context, major string, logf func(string, ...any)) (bindir string, err error) {
	cache, err := cacheDir()
	if err != nil {
		return "", fmt.Errorf("find your cache directory, for --download: %w", err)
	}
	return fetch.Server(ctx, fetch.Options{Major: major, Cache: cache, Logf: logf})
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
