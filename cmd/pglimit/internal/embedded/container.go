package embedded

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	image = "postgres:17-alpine"
	// untilEOF runs the server until the standard input ends, which happens at the latest
	// when the keeper and the docker command are killed. $0 is the image's entry point. The
	// job is a process group, so that SIGINT, a fast shutdown, also ends initdb.
	untilEOF = `set -m; "$0" postgres -c log_min_messages=fatal </dev/null & server=$!; cat >/dev/null & wait -n; kill -INT -- -$server; wait $server`
)

// container is a PostgreSQL server in a Docker container. Its data are in a volume.
type container struct {
	name, url, version string
	stdin              io.Closer
	done               chan struct{} // closed when the container is removed
}

func (c *container) URL() string           { return c.url }
func (c *container) Version() string       { return c.version }
func (c *container) Done() <-chan struct{} { return c.done }

// pull gets the image of the container from the Docker engine, or pulls it.
func pull(ctx context.Context, logf func(string, ...any)) error {
	_, err := docker(ctx, "image", "inspect", image)
	if err == nil || errors.Is(err, exec.ErrNotFound) {
		return err
	}
	logf("no PostgreSQL server found: pulling %s, to run one in Docker", image)
	_, err = docker(ctx, "pull", image)
	return err
}

// docker runs the docker command and returns its output.
func docker(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "docker", args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("docker %s: %w: %s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}

// startContainer starts a server on the volume of dir. Once the server has answered for the
// first time, dir has its password, which also names the volume.
func startContainer(ctx context.Context, dir Dir) (_ *container, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	password, err := os.ReadFile(dir.Password())
	isNew := errors.Is(err, fs.ErrNotExist)
	if isNew {
		password = []byte(rand.Text())
	} else if err != nil {
		return nil, err
	}
	c := &container{name: fmt.Sprintf("pglimit-%.8x", sha256.Sum256(password)), done: make(chan struct{})}
	for left := c.name; left != ""; { // of a keeper that was killed; it may be stopping
		_, _ = docker(ctx, "rm", "-f", c.name)
		if left, err = docker(ctx, "ps", "-aq", "--filter", "name="+c.name); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command("docker", "run", "--rm", "-i", "--name", c.name, "-v", c.name+":/var/lib/postgresql/data",
		"-p", "127.0.0.1::5432", "-e", "POSTGRES_PASSWORD", image, "bash", "-c", untilEOF, "docker-entrypoint.sh")
	cmd.Env = append(os.Environ(), "POSTGRES_PASSWORD="+string(password)) // the process list would show an argument
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr                         // the keeper's log
	if c.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait() // the log has its messages
		close(c.done)
	}()
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
		if err != nil && isNew { // the volume may be half made
			_ = os.Remove(dir.Password())
			_, _ = docker(context.Background(), "volume", "rm", "-f", c.name)
		}
	}()
	for {
		address, err := docker(ctx, "port", c.name, "5432")
		if err == nil {
			c.url = fmt.Sprintf("postgres://postgres:%s@%s/postgres?sslmode=disable&require_auth=scram-sha-256", password, address)
			var conn *pgx.Conn
			if conn, err = pgx.Connect(ctx, c.url); err == nil {
				version, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
				c.version = version + " (Docker)"
				if isNew {
					err = os.WriteFile(dir.Password(), password, 0o600)
				}
				return c, errors.Join(err, conn.Close(ctx))
			}
		}
		select {
		case <-c.done:
			return nil, fmt.Errorf("the container of %s ended while starting; %s/keeper.log has its messages", image, dir)
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the container of %s: %w", image, errors.Join(ctx.Err(), err))
		case <-time.After(10 * tick):
		}
	}
}

// Close stops the server, by force after ten seconds, and removes the container. The volume
// stays.
func (c *container) Close() error {
	_ = c.stdin.Close() // a second call fails
	select {
	case <-c.done:
		return nil
	case <-time.After(10 * time.Second):
		_, err := docker(context.Background(), "rm", "-f", c.name)
		return err
	}
}
