// Package localpg starts a PostgreSQL server of its own from the programs
// found on this machine, for tests, demonstrations and trying things out. The
// server listens on 127.0.0.1 only, behind a random password, and ends when
// the process that started it ends, however that happens.
package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/localpg/process"
)

// How long a step may take if the caller's context sets no earlier end.
const (
	startTimeout = time.Minute
	stopTimeout  = 10 * time.Second
)

var (
	errClosed    = errors.New("the PostgreSQL server is closed: start a new one")
	errPortTaken = errors.New("port taken")
)

// ErrInUse is in Start's error when another server runs on DataDir.
var ErrInUse = errors.New("another PostgreSQL server runs on this data directory")

// Options of Start. The zero value is a new, empty server that leaves nothing
// behind.
type Options struct {
	// BinDir is the directory of initdb and postgres. Default: what Find
	// finds; for an existing DataDir, the newest of its major version.
	BinDir string
	// DataDir keeps the data. If it is missing or empty it is made; if it
	// holds data that Start made earlier, the server goes on with them. Close
	// leaves it. Default: a new temporary directory, which Close removes.
	DataDir string
	// Settings are server settings by name, such as "fsync": "off". They hold
	// over postgresql.conf and ALTER SYSTEM. Default: the server's own.
	Settings map[string]string
}

// Server is a running PostgreSQL server. Its methods may be called at once
// from several goroutines; each waits for the one before.
type Server struct {
	bindir, version string
	settings        []string
	runDir          string // socket, log and, unless the caller gave one, data
	dataDir         string
	account         *process.Account // who runs it; nil: this process's user
	password        string
	reaper          *process.Reaper

	mu     sync.Mutex
	port   int
	proc   *process.Process // nil when stopped
	closed bool
}

// Start starts a server and returns once it takes connections, within a
// minute or until ctx ends. As root, where PostgreSQL refuses to run, it runs
// as user postgres or nobody, or as the owner of DataDir. Without a server on
// the machine the error is ErrNotFound.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	s := &Server{}
	for _, name := range slices.Sorted(maps.Keys(o.Settings)) {
		s.settings = append(s.settings, "-c", name+"="+o.Settings[name])
	}
	if err := s.findPrograms(o); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = s.Close() // the first error is the one to report
		}
	}()
	if err := s.prepare(ctx, o.DataDir); err != nil {
		return nil, err
	}
	const tries = 5 // between finding a free port and listening, another program may take it
	released := time.Now().Add(stopTimeout)
	for i := 1; ; i++ {
		if s.port, err = freePort(); err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		if err = s.launch(ctx); err == nil {
			return s, nil
		}
		if errors.Is(err, ErrInUse) && time.Now().Before(released) {
			// The process of an earlier server on these data was killed, and
			// the server is about to notice.
			select {
			case <-time.After(50 * time.Millisecond):
				i--
				continue
			case <-ctx.Done():
			}
		}
		if i == tries || !errors.Is(err, errPortTaken) {
			return nil, fmt.Errorf("start PostgreSQL %s: %w", s.version, err)
		}
	}
}

// URL connects to database postgres as superuser postgres. It stays the same
// after Restart.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.url()
}

func (s *Server) url() string {
	return fmt.Sprintf("postgres://%s:%s@127.0.0.1:%d/postgres?sslmode=disable", superuser, s.password, s.port)
}

// Version is the server's version, such as "17.5".
func (s *Server) Version() string { return s.version }

// BinDir is the directory the server was started from.
func (s *Server) BinDir() string { return s.bindir }

// Done is closed when the server has ended, whoever ended it. After Restart
// it is another channel.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		ended := make(chan struct{})
		close(ended)
		return ended
	}
	return s.proc.Done()
}

// Stop ends the server as an operator would: transactions under way are
// rolled back, connections closed, everything written to disk. It returns
// when the server has ended, or with ctx's error. A stopped server is left as
// it is.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop(ctx)
}

func (s *Server) stop(ctx context.Context) error {
	if s.proc == nil {
		return nil
	}
	if !s.proc.Ended() {
		if err := s.proc.RequestStop(ctx, executable(s.bindir, "pg_ctl"), s.dataDir); err != nil {
			return fmt.Errorf("stop PostgreSQL: %w", err)
		}
	}
	select {
	case <-s.proc.Done():
		s.forget()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop PostgreSQL: %w", ctx.Err())
	}
}

// Kill ends the server at once, all its processes with SIGKILL, as a crash
// does. What was committed is still there after Restart.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kill()
}

func (s *Server) kill() error {
	if s.proc == nil {
		return nil
	}
	if err := s.proc.KillTree(); err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	s.forget()
	return nil
}

// forget notes that the server's process has ended.
func (s *Server) forget() {
	s.proc = nil
	s.reaper.Watch(0)
}

// Restart stops the server if it runs, and starts it with the same data on
// the same port. It returns once it takes connections, recovery from a Kill
// included, within a minute or until ctx ends.
func (s *Server) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if err := s.stop(ctx); err != nil {
		return err
	}
	if err := s.launch(ctx); err != nil {
		return fmt.Errorf("restart PostgreSQL %s: %w", s.version, err)
	}
	return nil
}

// Close stops the server, by force after ten seconds, and removes what Start
// made, except in a DataDir of the caller's. Further calls do nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := s.stop(ctx)
	if err != nil {
		err = errors.Join(err, s.kill())
	}
	if s.runDir != "" {
		err = errors.Join(err, os.RemoveAll(s.runDir))
	}
	s.reaper.Close()
	return err
}

// launch starts the server process on s.port and waits until it takes
// connections. On an error nothing is left running.
func (s *Server) launch(ctx context.Context) error {
	if s.proc != nil {
		return errors.New("it is running already")
	}
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the server has its own copy
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}

	args := append([]string{
		"-D", s.dataDir, "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=" + socketSetting(s.runDir),
	}, s.settings...)
	cmd := exec.Command(executable(s.bindir, "postgres"), args...)
	s.inherit(cmd)
	cmd.Stdout, cmd.Stderr = log, log
	s.account.Apply(cmd)
	if s.proc, err = process.Start(cmd); err != nil {
		s.proc = nil
		return err
	}
	s.reaper.Watch(cmd.Process.Pid)

	if err := s.awaitReady(ctx); err != nil {
		err = s.explain(err, begin)
		return errors.Join(err, s.kill())
	}
	return nil
}

// awaitReady polls until the server accepts a connection, has ended, or ctx
// ends.
func (s *Server) awaitReady(ctx context.Context) error {
	delay := 5 * time.Millisecond
	for {
		conn, err := pgx.Connect(ctx, s.url())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.proc.Done():
			return errors.New("the server ended while starting")
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w; last attempt: %v", ctx.Err(), err)
		case <-time.After(delay):
			delay = min(2*delay, 200*time.Millisecond)
		}
	}
}

// explain adds the end of what the server logged since offset begin.
func (s *Server) explain(err error, begin int64) error {
	log, readErr := os.ReadFile(s.logFile())
	if readErr != nil || int64(len(log)) <= begin {
		return err
	}
	log = log[begin:]
	if s.proc.Ended() && bytes.Contains(log, []byte("could not bind IPv4")) {
		return fmt.Errorf("%w: 127.0.0.1:%d is in use by another program", errPortTaken, s.port)
	}
	if s.proc.Ended() && (bytes.Contains(log, []byte(`lock file "postmaster.pid" already exists`)) ||
		bytes.Contains(log, []byte("pre-existing shared memory block"))) {
		err = fmt.Errorf("%w: %w", ErrInUse, err)
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	lines = lines[max(0, len(lines)-10):]
	return fmt.Errorf("%w; its log ends:\n\t%s", err, strings.Join(lines, "\n\t"))
}

func (s *Server) logFile() string { return filepath.Join(s.runDir, "postgres.log") }

// freePort returns a port of 127.0.0.1 that nobody listens on right now.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// socketSetting is the unix_socket_directories value for dir; none if the
// system would refuse a socket path as long.
func socketSetting(dir string) string {
	const longest = 85 // of 103 bytes, less "/.s.PGSQL.65535"
	if len(dir) > longest || strings.ContainsAny(dir, `",\`) {
		return ""
	}
	return `"` + dir + `"`
}
