// Package dockerpg runs PostgreSQL in a Docker container, by the docker command. The
// container ends when the process that started it ends, even by a crash.
package dockerpg

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// script runs the server as its standard input says, line by line, and reports what it did.
// Its input ends at the latest when this process and the docker command are killed. $0 is
// the image's entry point and $@ the server's settings. The server is a process group, so
// that SIGINT, a fast shutdown, also ends initdb. Everything in the container but the script
// itself is of the server.
const script = `set -m
start() { { "$entry" postgres "$@" </dev/null >&2; echo exited; } & server=$!; }
stop() { kill -INT -- "-$server"; wait "$server"; }
entry=$0
start "$@"
while read -r line; do
	case $line in
	start) start "$@" ;;
	stop) stop ;;
	kill) kill -KILL -1; wait "$server" ;;
	esac
	echo "$line"
done
stop 2>/dev/null`

const (
	startTimeout  = time.Minute
	stopTimeout   = 10 * time.Second
	onceTimeout   = time.Second // of an attempt to connect
	engineTimeout = 5 * time.Second
)

// Options configures Start.
type Options struct {
	Image, Name string // of the container
	Password    string // of superuser postgres
	// Volume keeps the data. Default: they are in memory, and lost with the container. On
	// disk, creating databases takes a third more processor time.
	Volume   string
	Settings map[string]string
	Query    string    // of the URL, such as "sslmode=disable"
	Log      io.Writer // receives the server's messages and docker's; it may be nil
}

// Server is a running server. Its methods but Close are not safe for concurrent use.
type Server struct {
	options Options
	stdin   io.WriteCloser
	said    chan string // the script's reports
	log     tail
	done    chan struct{} // closed when the container is removed

	mu           sync.Mutex
	url, version string
	ending       bool // by Stop or Kill
}

// tail keeps the end of what is written to it. It is read after the last write.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	const most = 2000
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-most):]
	return len(p), nil
}

// Command runs the docker command and returns its output.
func Command(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "docker", args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("docker %s: %w: %s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}

// Engine returns an error if no Docker engine answers the docker command.
func Engine(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	_, err := Command(ctx, "version", "--format", "{{.Server.Version}}")
	return err
}

// Present returns an error if the engine does not have the image.
func Present(ctx context.Context, image string) error {
	_, err := Command(ctx, "image", "inspect", image)
	return err
}

// Start starts a container and returns once its server answers, or an error after a minute.
// The engine must have the image.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	entry, err := Command(ctx, "image", "inspect", "--format", "{{index .Config.Entrypoint 0}}", o.Image)
	if err != nil {
		return nil, err
	}
	port := "127.0.0.1::5432"
	if remote() != "" {
		port = "5432"
	}
	args := []string{"run", "--rm", "-i", "--name", o.Name, "-p", port, "-e", "POSTGRES_PASSWORD"}
	if o.Volume != "" {
		args = append(args, "-v", o.Volume+":/var/lib/postgresql/data")
	} else {
		args = append(args, "--tmpfs", "/pglimit:rw", "-e", "PGDATA=/pglimit/data")
	}
	args = append(args, o.Image, "bash", "-c", script, entry)
	for _, name := range slices.Sorted(maps.Keys(o.Settings)) {
		args = append(args, "-c", name+"="+o.Settings[name])
	}
	cmd := exec.Command("docker", args...)
	cmd.Env = append(os.Environ(), "POSTGRES_PASSWORD="+o.Password) // the process list would show an argument
	s := &Server{options: o, said: make(chan string, 1), done: make(chan struct{})}
	cmd.Stderr = &s.log
	if o.Log != nil {
		cmd.Stderr = io.MultiWriter(&s.log, o.Log)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if s.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		s.listen(stdout)
		_ = cmd.Wait() // the log has its messages
		close(s.done)
	}()
	if err := s.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// listen passes the script's reports on, and ends the container if the server has ended by
// itself.
func (s *Server) listen(stdout io.Reader) {
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if lines.Text() != "exited" {
			s.said <- lines.Text()
			continue
		}
		s.mu.Lock()
		if !s.ending {
			_ = s.stdin.Close() // a second call fails
		}
		s.mu.Unlock()
	}
}

// remote returns the host of an engine elsewhere, or "".
func remote() string {
	u, err := url.Parse(os.Getenv("DOCKER_HOST"))
	if err != nil || u.Scheme != "tcp" && u.Scheme != "ssh" {
		return ""
	}
	return u.Hostname()
}

// addresses returns where the server may be reached: in the container's network, which
// avoids Docker's proxy and its sixth of the tests' time, and at the published port.
func (s *Server) addresses(ctx context.Context) (all []string, err error) {
	if runtime.GOOS == "linux" && remote() == "" {
		ip, err := Command(ctx, "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", s.options.Name)
		if err == nil && ip != "" {
			all = append(all, net.JoinHostPort(ip, "5432"))
		}
	}
	published, err := Command(ctx, "port", s.options.Name, "5432")
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(strings.SplitN(published, "\n", 2)[0])
	return append(all, net.JoinHostPort(cmp.Or(remote(), "127.0.0.1"), port)), err
}

// awaitReady polls until the server accepts a connection.
func (s *Server) awaitReady(ctx context.Context) error {
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, 200*time.Millisecond) {
		addresses, err := s.addresses(ctx)
		for _, address := range addresses {
			if err = s.connect(ctx, address); err == nil {
				return nil
			}
		}
		select {
		case <-s.done:
			return fmt.Errorf("the container of %s ended while starting; its log ends:\n%s", s.options.Image, s.log.text)
		case <-ctx.Done():
			return fmt.Errorf("the container of %s is not ready: %w; last attempt: %v", s.options.Image, ctx.Err(), err)
		case <-time.After(delay):
		}
	}
}

// connect connects to an address and records it.
func (s *Server) connect(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, onceTimeout)
	defer cancel()
	url := fmt.Sprintf("postgres://postgres:%s@%s/postgres?%s", s.options.Password, address, s.options.Query)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, _, _ = strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	s.url, s.ending = url, false
	return conn.Close(ctx)
}

// URL returns the URL of database postgres for superuser postgres.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.url
}

// Version returns the server's version, such as "17.5".
func (s *Server) Version() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Describe returns the names of the image and the container.
func (s *Server) Describe() string {
	return fmt.Sprintf("Docker image %s, container %s", s.options.Image, s.options.Name)
}

// Done returns a channel that is closed when the container has ended.
func (s *Server) Done() <-chan struct{} { return s.done }

// Stop ends the server by a fast shutdown and returns when it has ended.
func (s *Server) Stop(ctx context.Context) error { return s.end(ctx, "stop") }

// Kill ends all processes of the server with SIGKILL, like a crash, and returns when they
// have ended.
func (s *Server) Kill(ctx context.Context) error { return s.end(ctx, "kill") }

func (s *Server) end(ctx context.Context, how string) error {
	s.mu.Lock()
	ended := s.ending
	s.ending = true
	s.mu.Unlock()
	if ended {
		return nil
	}
	return s.tell(ctx, how)
}

// Restart stops the server if it runs, starts it with the same data, and returns once it
// accepts connections.
func (s *Server) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		return err
	}
	if err := s.tell(ctx, "start"); err != nil {
		return err
	}
	return s.awaitReady(ctx)
}

// tell lets the script do something and returns when it has.
func (s *Server) tell(ctx context.Context, what string) error {
	if _, err := fmt.Fprintln(s.stdin, what); err != nil {
		return fmt.Errorf("%s the server of %s: %w", what, s.Describe(), err)
	}
	select {
	case <-s.said:
		return nil
	case <-s.done:
		return fmt.Errorf("%s the server of %s: the container has ended", what, s.Describe())
	case <-ctx.Done():
		return fmt.Errorf("%s the server of %s: %w", what, s.Describe(), ctx.Err())
	}
}

// Close removes the container: with a volume, which stays, after a fast shutdown of at most
// ten seconds. Further calls do nothing.
func (s *Server) Close() error {
	if s.options.Volume == "" {
		_, _ = Command(context.Background(), "kill", s.options.Name) // fails if it has ended
	}
	_ = s.stdin.Close()
	select {
	case <-s.done:
		return nil
	case <-time.After(stopTimeout):
		_, err := Command(context.Background(), "rm", "-f", s.options.Name)
		return err
	}
}
