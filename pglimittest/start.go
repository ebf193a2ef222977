// Package pglimittest gives tests a PostgreSQL with pglimit's tables. It is a separate
// module, so that an application gains its dependencies only with its tests:
//
//	go get -t github.com/pglimit/pglimit/pglimittest
//
//	func TestMain(m *testing.M) { pglimittest.Main(m) }
//
//	func TestOrder(t *testing.T) {
//		pool := pglimittest.Pool(t) // of a new database, which is dropped when the test ends
//		l, err := limiter.New(pool, nil)
//		...
//	}
//
// All tests of a process share one server, which the first of them starts, and each gets a
// database, so tests can run in parallel. The server is
//
//   - the one that PGLIMIT_TEST_DATABASE_URL names, if that is set, with a role that may
//     create databases;
//   - otherwise a container, if a Docker engine answers and has an image or can pull one:
//     the official postgres:17, or pglimit-test-postgres, which scripts/test-image of
//     pglimit's repository builds;
//   - otherwise one started from the PostgreSQL programs on this machine.
//
// PGLIMIT_TEST_BACKEND=docker or local allows only that way, whatever else is set. With
// citus, the server is the coordinator of a Citus cluster: the one that
// PGLIMIT_TEST_DATABASE_URL names, or else one started from the programs on this machine,
// with two workers. Databases are created on all nodes, and pglimit's tables distributed.
// PGLIMIT_TEST_IMAGE names the image for Docker. Servers that are started run with fsync and
// full_page_writes off: committed data survive a crash of the server, but not of the
// machine. A container's data are in memory, except with StartOwn.
//
// To start one server for all packages of a go test, run it under withpg:
//
//	go run github.com/pglimit/pglimit/pglimittest/withpg@latest -- go test ./...
//
// An application that wants none of this module's dependencies runs its tests under withpg
// and uses the TestMain in docs/library.md.
//
// Start, Server and Template are for tests that need more, such as other tables in each
// database, or a server that stops in the middle.
package pglimittest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/pglimit/pglimit/pglimittest/internal/docker"
)

// SharedURL is the environment variable with the URL of a shared server. If it is set, Start
// uses that server. The program that started the server removes it after the tests.
const SharedURL = "PGLIMIT_TEST_SHARED_URL"

// envBackend is the environment variable with the only backend to use.
const envBackend = "PGLIMIT_TEST_BACKEND"

// Option changes the server settings of Start and StartOwn.
type Option func(settings map[string]string)

// Setting sets a server setting, such as Setting("fsync", "on"). It has no effect on a
// server that PGLIMIT_TEST_DATABASE_URL names. Defaults: fsync and full_page_writes off,
// max_connections 300, otherwise the server's defaults.
func Setting(name, value string) Option {
	return func(settings map[string]string) { settings[name] = value }
}

// listenAddresses marks the servers of OverTCP among the settings.
const listenAddresses = "listen_addresses"

// OverTCP makes a server of this machine's programs listen on 127.0.0.1 and check
// passwords, as all others do, instead of on a Unix socket that only its user can reach.
func OverTCP(settings map[string]string) { settings[listenAddresses] = "127.0.0.1" }

// Start returns a server, which the caller must Close. It logs its steps and the chosen
// server to logf, without passwords; nil disables that. If no way works, the error has the
// reason for each.
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

// StartOwn is like Start, for tests that stop or kill the server. It never uses a shared
// server or one that PGLIMIT_TEST_DATABASE_URL names.
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
	s, err := begin(ctx, logf, kind, b)
	if err == nil && mayEnd {
		s.ending = b.(ending)
		if c, is := b.(*cluster); is {
			for i, w := range s.workers {
				w.ending = c.workers[i]
			}
		}
	}
	return s, err
}

// begin returns a Server on a running backend.
func begin(ctx context.Context, logf func(string, ...any), kind string, b backend) (*Server, error) {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	run := make([]byte, 4)
	rand.Read(run) // never fails
	s := &Server{kind: kind, backend: b, ending: lasting{}, run: hex.EncodeToString(run)}
	err := s.readVersion(ctx)
	if err == nil && onCitus() {
		err = s.findNodes(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", b.Describe(), err), s.Close())
	}
	logf("using %s", s)
	return s, nil
}

// choose tries the backends in order.
func choose(ctx context.Context, logf func(string, ...any), url string, mayEnd bool, settings map[string]string) (kind string, _ backend, _ error) {
	forced := os.Getenv(envBackend)
	switch forced {
	case "", kindCitus:
		if url != "" {
			b, err := startURL(url)
			if err != nil {
				return "", nil, fmt.Errorf("%s: %w", envURL, err)
			}
			return kindURL, b, nil
		}
		if forced == kindCitus {
			if settings[listenAddresses] != "" {
				return "", nil, errors.New("the nodes of a Citus cluster listen on sockets: OverTCP is not for them")
			}
			c, err := startCluster(ctx, settings)
			if err != nil {
				return "", nil, fmt.Errorf("citus: %w", err)
			}
			return kindCitus, c, nil
		}
	case kindDocker, kindLocal:
	default:
		return "", nil, fmt.Errorf("%s is %q: set it to docker, local or citus, or unset it", envBackend, forced)
	}

	overTCP := settings[listenAddresses] != ""
	delete(settings, listenAddresses) // of a container it is another
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
		logf("%v; using a local server instead", dockerErr)
	}
	b, err := startLocal(ctx, settings, overTCP)
	if err != nil {
		err = fmt.Errorf("local: %w", err)
		if forced == "" {
			err = fmt.Errorf("no PostgreSQL is available: %w; %w; or set %s", dockerErr, err, envURL)
		}
		return "", nil, err
	}
	return kindLocal, b, nil
}
