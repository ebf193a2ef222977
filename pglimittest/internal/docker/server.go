// Package docker runs PostgreSQL in containers, from an image that the engine has, that it
// can pull, or that scripts/test-image builds.
package docker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/modules/postgres"
)

const (
	stopTimeout   = 30 * time.Second // after that the engine kills the server
	readyTimeout  = time.Minute
	directTimeout = 2 * time.Second

	// memory is a file system in memory, which a container loses when it stops. On disk,
	// creating databases takes a third more processor time: ext4 searches for inodes, since
	// it does not reuse those of files that were just deleted.
	memory = "/pglimit"
)

// Server is a server in a container.
type Server struct {
	image     string
	engine    *client.Client
	container *postgres.PostgresContainer
	mayEnd    bool // tests stop or kill it

	mu      sync.Mutex
	address string
}

// Start starts a container of the best available image, with server settings by name. It
// logs slow steps to logf. Set mayEnd for tests that stop or kill the server.
func Start(ctx context.Context, logf func(string, ...any), mayEnd bool, settings map[string]string) (_ *Server, err error) {
	engine, err := connectEngine(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			engine.Close()
		}
	}()
	image, registry, err := chooseImage(ctx, engine, logf)
	if err != nil {
		return nil, err
	}
	prepareTestcontainers(ctx, engine, registry)
	removeOrphans(ctx, engine, logf)

	password := make([]byte, 16)
	rand.Read(password) // never fails
	var options []testcontainers.ContainerCustomizer
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	if !mayEnd {
		options = append(options, testcontainers.WithTmpfs(map[string]string{memory: "rw"}), testcontainers.WithEnv(map[string]string{"PGDATA": memory + "/data"}))
	}
	c, err := postgres.Run(ctx, image, append(options,
		testcontainers.WithLogger(tclog.NewNoopLogger()),
		postgres.WithPassword(hex.EncodeToString(password)),
		testcontainers.WithCmd(append([]string{"postgres"}, args...)...),
		testcontainers.WithLabels(ownerLabels()),
		testcontainers.WithConfigModifier(func(c *container.Config) {
			c.StopSignal = "SIGINT" // fast shutdown; an imported image cannot set it
		}),
		postgres.BasicWaitStrategies(),
	)...)
	d := &Server{image: image, engine: engine, container: c, mayEnd: mayEnd}
	if err == nil {
		err = d.awaitReady(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("image %s: %w", image, err), testcontainers.TerminateContainer(c))
	}
	return d, nil
}

// awaitReady reads the server's current address and polls until it accepts a connection.
func (d *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	address, err := d.container.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		return err
	}
	if direct := d.direct(ctx); direct != "" {
		address = direct
	}
	d.mu.Lock()
	d.address = address
	d.mu.Unlock()
	for delay := 5 * time.Millisecond; ; delay = min(2*delay, 200*time.Millisecond) {
		conn, err := pgx.Connect(ctx, address)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server is not ready: %w; last attempt: %v", ctx.Err(), err)
		case <-time.After(delay):
		}
	}
}

// direct returns the address of the server in the container's network, if it is reachable
// from here. That avoids Docker's proxy for published ports, which takes a sixth of the
// tests' time. A server that may end keeps the published port, because that refuses
// connections immediately after the end; the container's address would not answer.
func (d *Server) direct(ctx context.Context) string {
	if d.mayEnd || runtime.GOOS != "linux" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, directTimeout)
	defer cancel()
	ip, err := d.container.ContainerIP(ctx)
	if err != nil || ip == "" {
		return ""
	}
	published, err := d.container.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		return ""
	}
	u, err := url.Parse(published)
	if err != nil {
		return ""
	}
	u.Host = net.JoinHostPort(ip, "5432")
	conn, err := pgx.Connect(ctx, u.String())
	if err != nil {
		return "" // such as a wrong password: another network has the same address
	}
	if err := conn.Close(ctx); err != nil {
		return ""
	}
	return u.String()
}

// URL returns the server's URL for its superuser. Restart changes it.
func (d *Server) URL() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.address
}

// Describe returns the names of the image and the container.
func (d *Server) Describe() string {
	return fmt.Sprintf("Docker image %s, container %.12s", d.image, d.container.GetContainerID())
}

// Stop ends the server by a fast shutdown and returns when it has ended.
func (d *Server) Stop(ctx context.Context) error {
	timeout := stopTimeout
	if err := d.container.Stop(ctx, &timeout); err != nil {
		return fmt.Errorf("stop the container: %w", err)
	}
	return nil
}

// Kill ends all processes of the server with SIGKILL and returns when they have
// ended.
func (d *Server) Kill(ctx context.Context) error {
	id := d.container.GetContainerID()
	wait := d.engine.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	state, err := d.container.State(ctx)
	if err != nil {
		return fmt.Errorf("kill the container: %w", err)
	}
	if !state.Running {
		return nil
	}
	if _, err := d.engine.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "SIGKILL"}); err != nil {
		return fmt.Errorf("kill the container: %w", err)
	}
	select {
	case <-wait.Result:
		return nil
	case err := <-wait.Error:
		return fmt.Errorf("wait for the killed container: %w", err)
	}
}

// Restart stops the server if it runs, starts it with the same data, and returns once it
// accepts connections.
func (d *Server) Restart(ctx context.Context) error {
	if err := d.Stop(ctx); err != nil {
		return err
	}
	if err := d.container.Start(ctx); err != nil {
		return fmt.Errorf("restart the container: %w", err)
	}
	return d.awaitReady(ctx)
}

// Close removes the container with its data.
func (d *Server) Close(ctx context.Context) error {
	defer d.engine.Close()
	// Its data are not needed: no orderly shutdown.
	return testcontainers.TerminateContainer(d.container,
		testcontainers.StopContext(ctx), testcontainers.StopTimeout(0))
}
