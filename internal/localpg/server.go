// Package localpg starts a private PostgreSQL server from the programs installed on this
// machine, for tests and demonstrations. It ends when the process that started it ends,
// even by a crash.
//
// On Unix the server listens only on a socket in a directory that other users cannot enter.
// On Windows, and with Options.TCP, it listens on 127.0.0.1 with a random password.
// Another program could take the port before the server does. So both sides prove by
// SCRAM that they know the password, and neither sends it.
package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/localpg/process"
)

// Timeouts of steps, unless the caller's context ends earlier.
const (
	startTimeout = 5 * time.Minute // initdb takes a while on a busy machine
	stopTimeout  = 10 * time.Second
)

var (
	errClosed    = errors.New("the PostgreSQL server is closed: start a new one")
	errPortTaken = errors.New("port taken")
)

// ErrInUse is in Start's error if another server runs on DataDir.
var ErrInUse = errors.New("another PostgreSQL server runs on this data directory")

// Options configures Start. The zero value selects a new, empty server that leaves
// nothing behind.
type Options struct {
	// BinDir is the directory of initdb and postgres. Default: the newest that Find finds,
	// whatever the version of the data.
	BinDir string
	// DataDir is the absolute path of the directory of the data. Start initializes it if it
	// is missing or empty, and uses data from an earlier Start. Close keeps it. The directory
	// above it must exist; for root it must be one that process.Trusted accepts. Default: a
	// new temporary directory, which Close removes.
	DataDir string
	// TCP makes the server listen on 127.0.0.1 instead of a Unix socket. The URL then has a
	// password and require_auth=scram-sha-256, which libpq before 16 and lib/pq refuse.
	// Default: false on Unix. Elsewhere it is always true.
	TCP bool
	// Settings are server settings by name, such as "fsync": "off". They override
	// postgresql.conf and ALTER SYSTEM. Default: the server's defaults.
	Settings map[string]string
}

// Server is a running PostgreSQL server. Its methods are safe for concurrent use; each
// waits for the one before.
type Server struct {
	bindir, version string
	settings        []string
	tcp             bool
	runDir          string // socket, log and, without Options.DataDir, data
	run             *os.Root
	log             *os.File
	dataDir         string
	account         *process.Account // the server's user; nil: this process's user
	password        string
	reaper          *process.Reaper

	mu     sync.Mutex
	port   int // of 127.0.0.1, or in the socket's name
	pid    int
	proc   *process.Process // nil when stopped
	closed bool
}

// Start starts a server and returns once it accepts connections. It fails after five minutes
// or when ctx ends. For root, the server runs as user postgres or nobody, or as the owner
// of DataDir. Without a server on the machine the error is ErrNotFound.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	s := &Server{tcp: o.TCP || runtime.GOOS == "windows"}
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
		if s.port, err = s.choosePort(); err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		if err = s.launch(ctx); err == nil {
			return s, nil
		}
		if errors.Is(err, ErrInUse) && time.Now().Before(released) {
			// The process that started an earlier server on these data was killed; that
			// server is about to end.
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

// URL returns the URL of database postgres for superuser postgres. Restart does not change
// it.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.url()
}

func (s *Server) url() string {
	if !s.tcp {
		query := url.Values{"host": {s.runDir}, "port": {strconv.Itoa(s.port)}, "sslmode": {"disable"}}
		return fmt.Sprintf("postgres://%s@/postgres?%s", superuser, query.Encode())
	}
	return fmt.Sprintf("postgres://%s:%s@127.0.0.1:%d/postgres?sslmode=disable&require_auth=scram-sha-256", superuser, s.password, s.port)
}

// Version returns the server's version, such as "17.5".
func (s *Server) Version() string { return s.version }

// BinDir returns the directory of the server's programs.
func (s *Server) BinDir() string { return s.bindir }

// Done returns a channel that is closed when the server has ended, for any reason. After
// Restart it returns another channel.
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

// Stop ends the server by a fast shutdown: it rolls back open transactions, closes
// connections and writes everything to disk. It returns when the server has ended, or
// ctx's error. It does nothing if the server is stopped.
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

// Kill ends all processes of the server with SIGKILL, like a crash. Committed data are
// still there after Restart.
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

// forget records that the server's process has ended.
func (s *Server) forget() {
	s.proc = nil
	s.reaper.Watch(0)
}

// Restart stops the server if it runs, and starts it with the same data and port. It
// returns once the server accepts connections, after recovery from a Kill. It fails after
// five minutes or when ctx ends.
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

// Close stops the server, by force after ten seconds, and removes its files, except for
// Options.DataDir. Further calls do nothing.
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
	err = errors.Join(err, s.removeRunDir())
	s.reaper.Close()
	return err
}

// launch starts the server process on s.port and waits until it accepts connections. After
// an error no process is left.
func (s *Server) launch(ctx context.Context) error {
	if s.proc != nil {
		return errors.New("it is running already")
	}
	begin, err := s.log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}

	args := append([]string{"-D", s.dataDir, "-p", strconv.Itoa(s.port)}, s.listen()...)
	args = append(args, s.settings...)
	cmd := exec.Command(executable(s.bindir, "postgres"), args...)
	s.inherit(cmd)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	s.account.Apply(cmd)
	if s.proc, err = process.Start(cmd); err != nil {
		s.proc = nil
		return err
	}
	s.pid = cmd.Process.Pid
	s.reaper.Watch(s.pid)

	if err := s.awaitReady(ctx); err != nil {
		err = s.explain(err, begin)
		return errors.Join(err, s.kill())
	}
	return nil
}

// awaitReady polls until the server accepts a connection or has ended, or ctx ends. It
// connects only after the server has reported that it listens: before that, another program
// may answer on the port.
func (s *Server) awaitReady(ctx context.Context) error {
	delay := 5 * time.Millisecond
	for {
		err := s.listening()
		if err == nil {
			var conn *pgx.Conn
			if conn, err = pgx.Connect(ctx, s.url()); err == nil {
				return conn.Close(ctx)
			}
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

// explain adds the end of the server's log, from offset begin on.
func (s *Server) explain(err error, begin int64) error {
	log, readErr := io.ReadAll(io.NewSectionReader(s.log, begin, 1<<20))
	if readErr != nil || len(log) == 0 {
		return err
	}
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
