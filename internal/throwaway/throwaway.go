// Package throwaway gets a PostgreSQL server for tests and demonstrations:
//
//   - the one PGLIMIT_TEST_DATABASE_URL names, if that is set;
//   - else a container, if a Docker engine answers and has or gets an image:
//     the official one, or pglimit-test-postgres, which scripts/test-image
//     builds;
//   - else a server started from the programs on this machine.
//
// Programs that run several test packages share one server: they start it and
// set SharedURL for the packages' processes, as internal/withpg does.
//
// PGLIMIT_TEST_BACKEND=docker or local allows that one way only, whatever
// else is set. PGLIMIT_TEST_IMAGE names the image to use with Docker.
//
// Servers of the last two kinds run with fsync and full_page_writes off:
// what is committed survives the end of the server, however sudden, but not
// that of the machine.
package throwaway

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// What a user sets.
const (
	// SharedURL is the environment variable that names a server which Start uses
	// without choosing one. Its owner removes it after the tests.
	SharedURL = "PGLIMIT_TEST_SHARED_URL"

	envURL     = "PGLIMIT_TEST_DATABASE_URL"
	envBackend = "PGLIMIT_TEST_BACKEND"
	envImage   = "PGLIMIT_TEST_IMAGE"
)

// The kinds of server, as Backend returns them.
const (
	kindURL    = "url"
	kindShared = "shared"
	kindDocker = "docker"
	kindLocal  = "local"
)

const closeTimeout = 30 * time.Second

// Server is a PostgreSQL server to run tests on. Its methods may be called
// at once from several goroutines.
type Server struct {
	kind    string
	backend backend
	version string
	number  int    // of the version: 170002 is 17.2
	run     string // part of the names of all databases made here
	count   atomic.Int64

	mu        sync.Mutex
	templates []string
	closed    bool
}

// backend is one way to have a server.
type backend interface {
	url() string      // superuser, or whoever the user named; changes with restart
	describe() string // without the password
	stop(context.Context) error
	kill(context.Context) error
	restart(context.Context) error
	close(context.Context) error
}

// Option changes how Start and StartOwn start a server.
type Option func(settings map[string]string)

// Setting sets a server setting, such as Setting("fsync", "on"). A server
// that PGLIMIT_TEST_DATABASE_URL names keeps its own. Defaults: fsync and
// full_page_writes off, max_connections 300, otherwise the server's.
func Setting(name, value string) Option {
	return func(settings map[string]string) { settings[name] = value }
}

// Start gets a server, which the caller has to Close. It tells logf (nil for
// nobody) what it does and what it took; no password is in there. The error,
// if no way works, names each way's reason.
func Start(ctx context.Context, logf func(format string, args ...any), options ...Option) (*Server, error) {
	if address := os.Getenv(SharedURL); address != "" {
		b, err := startURL(address)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", SharedURL, err)
		}
		return begin(ctx, logf, kindShared, b)
	}
	return start(ctx, logf, os.Getenv(envURL), false, options)
}

// StartOwn is Start for tests that stop or kill the server: it never takes
// the one PGLIMIT_TEST_DATABASE_URL names, nor a shared one.
func StartOwn(ctx context.Context, logf func(format string, args ...any), options ...Option) (*Server, error) {
	return start(ctx, logf, "", true, options)
}

func start(ctx context.Context, logf func(string, ...any), url string, mayEnd bool, options []Option) (*Server, error) {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	settings := map[string]string{"fsync": "off", "full_page_writes": "off", "max_connections": "300"}
	for _, o := range options {
		o(settings)
	}
	kind, b, err := choose(ctx, logf, url, mayEnd, settings)
	if err != nil {
		return nil, err
	}
	return begin(ctx, logf, kind, b)
}

// begin makes a Server of a backend that is there.
func begin(ctx context.Context, logf func(string, ...any), kind string, b backend) (*Server, error) {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	run := make([]byte, 4)
	rand.Read(run) // never fails
	s := &Server{kind: kind, backend: b, run: hex.EncodeToString(run)}
	if err := s.readVersion(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", b.describe(), err), s.Close())
	}
	logf("using %s", s)
	return s, nil
}

// choose tries the ways in their order.
func choose(ctx context.Context, logf func(string, ...any), url string, mayEnd bool, settings map[string]string) (kind string, _ backend, _ error) {
	forced := os.Getenv(envBackend)
	switch forced {
	case "":
		if url != "" {
			b, err := startURL(url)
			if err != nil {
				return "", nil, fmt.Errorf("%s: %w", envURL, err)
			}
			return kindURL, b, nil
		}
	case kindDocker, kindLocal:
	default:
		return "", nil, fmt.Errorf("%s is %q: set it to docker or local, or unset it", envBackend, forced)
	}

	var dockerErr error
	if forced != kindLocal {
		b, err := startDocker(ctx, logf, mayEnd, maps.Clone(settings))
		if err == nil {
			return kindDocker, b, nil
		}
		dockerErr = fmt.Errorf("docker: %w", err)
		if forced == kindDocker || ctx.Err() != nil || os.Getenv(envImage) != "" {
			return "", nil, dockerErr
		}
		logf("%v; taking a local server instead", dockerErr)
	}
	b, err := startLocal(ctx, settings)
	if err != nil {
		err = fmt.Errorf("local: %w", err)
		if forced == "" {
			err = fmt.Errorf("no PostgreSQL to be had: %w; %w; or set %s", dockerErr, err, envURL)
		}
		return "", nil, err
	}
	return kindLocal, b, nil
}

// readVersion asks the server for its version and refuses one too old.
func (s *Server) readVersion(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	const query = `SELECT current_setting('server_version'), current_setting('server_version_num')::int`
	if err := conn.QueryRow(ctx, query).Scan(&s.version, &s.number); err != nil {
		return err
	}
	s.version, _, _ = strings.Cut(s.version, " ")
	if s.number < 130000 {
		return fmt.Errorf("PostgreSQL %s is too old: take 13 or newer", s.version)
	}
	return nil
}

// URL connects to the server as a role that may create databases, the
// superuser on a server of our own. With Docker it changes with Restart: ask
// again. What it names may be shared with other runs: create databases of
// your own.
func (s *Server) URL() string { return s.backend.url() }

// Backend is "url", "shared", "docker" or "local".
func (s *Server) Backend() string { return s.kind }

// String describes the server in one line, without a password.
func (s *Server) String() string {
	return fmt.Sprintf("PostgreSQL %s, %s", s.version, s.backend.describe())
}

// Stop ends the server in order (fast shutdown) and returns when it has
// ended. Like Kill and Restart, it fails on a server that
// PGLIMIT_TEST_DATABASE_URL names; see StartOwn.
func (s *Server) Stop(ctx context.Context) error { return s.backend.stop(ctx) }

// Kill ends all processes of the server with SIGKILL, as a crash does, and
// returns when they have ended.
func (s *Server) Kill(ctx context.Context) error { return s.backend.kill(ctx) }

// Restart starts the server again with the same data, after stopping it if
// it runs, and returns once it takes connections.
func (s *Server) Restart(ctx context.Context) error { return s.backend.restart(ctx) }

// Close removes the server with all its databases; on a server that
// is shared or that PGLIMIT_TEST_DATABASE_URL names it drops the templates. Further calls do
// nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	templates, closed := s.templates, s.closed
	s.templates, s.closed = nil, true
	s.mu.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var err error
	if s.kind == kindURL || s.kind == kindShared {
		for _, name := range templates {
			err = errors.Join(err, s.drop(ctx, name))
		}
	}
	return errors.Join(err, s.backend.close(ctx))
}
