// Package throwaway gets a PostgreSQL server for tests and demonstrations:
//
//   - the one PGLIMIT_TEST_DATABASE_URL names, if that is set;
//   - else a container, if a Docker engine answers and has or gets an image:
//     the official one, or pglimit-test-postgres, which scripts/test-image
//     builds;
//   - else a server started from the programs on this machine.
//
// Programs that run several test packages share one server: they start it and
// set SharedURL for the packages' processes, as throwaway/withpg does.
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

	"github.com/pglimit/pglimit/internal/throwaway/internal/docker"
)

// SharedURL is the environment variable that names a server which Start uses
// without choosing one. Its owner removes it after the tests.
const SharedURL = "PGLIMIT_TEST_SHARED_URL"

// envBackend is the environment variable that names the only way to take.
const envBackend = "PGLIMIT_TEST_BACKEND"

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
		return nil, errors.Join(fmt.Errorf("%s: %w", b.Describe(), err), s.Close())
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
		b, err := docker.Start(ctx, logf, mayEnd, maps.Clone(settings))
		if err == nil {
			return kindDocker, b, nil
		}
		dockerErr = fmt.Errorf("docker: %w", err)
		if forced == kindDocker || ctx.Err() != nil || os.Getenv(docker.ImageVariable) != "" {
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
