package throwaway

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
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
	pingTimeout   = 5 * time.Second
	stopTimeout   = 30 * time.Second // then the engine kills
	readyTimeout  = time.Minute
	directTimeout = 2 * time.Second
)

// dockerServer is a server in a container.
type dockerServer struct {
	image     string
	engine    *client.Client
	container *postgres.PostgresContainer
	mayEnd    bool // tests stop or kill it

	mu      sync.Mutex
	address string
}

// startDocker starts a container of the best image to be had.
func startDocker(ctx context.Context, logf func(string, ...any), mayEnd bool, settings map[string]string) (_ backend, err error) {
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
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	c, err := postgres.Run(ctx, image,
		testcontainers.WithLogger(tclog.NewNoopLogger()),
		postgres.WithPassword(hex.EncodeToString(password)),
		testcontainers.WithCmd(append([]string{"postgres"}, args...)...),
		testcontainers.WithLabels(ownerLabels()),
		testcontainers.WithConfigModifier(func(c *container.Config) {
			c.StopSignal = "SIGINT" // fast shutdown; an imported image cannot say so itself
		}),
		postgres.BasicWaitStrategies(),
	)
	d := &dockerServer{image: image, engine: engine, container: c, mayEnd: mayEnd}
	if err == nil {
		err = d.awaitReady(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("image %s: %w", image, err), testcontainers.TerminateContainer(c))
	}
	return d, nil
}

// connectEngine connects to the Docker engine at DOCKER_HOST or one of the
// usual sockets.
func connectEngine(ctx context.Context) (*client.Client, error) {
	hosts := []string{os.Getenv("DOCKER_HOST")}
	if hosts[0] == "" {
		hosts = []string{client.DefaultDockerHost}
		home, _ := os.UserHomeDir()
		for _, socket := range []string{
			filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "docker.sock"), // rootless
			filepath.Join(home, ".docker/run/docker.sock"),             // Docker Desktop
			filepath.Join(home, ".docker/desktop/docker.sock"),
			filepath.Join(home, ".colima/default/docker.sock"),
		} {
			if info, err := os.Stat(socket); err == nil && info.Mode()&os.ModeSocket != 0 {
				hosts = append(hosts, "unix://"+socket)
			}
		}
	}
	var errs []error
	for _, host := range hosts {
		if socket, ok := strings.CutPrefix(host, "unix://"); ok {
			if _, err := os.Stat(socket); err != nil {
				errs = append(errs, err) // shorter than what the client says
				continue
			}
		}
		engine, err := client.New(client.FromEnv, client.WithHost(host))
		if err == nil {
			ctx, cancel := context.WithTimeout(ctx, pingTimeout)
			_, err = engine.Ping(ctx, client.PingOptions{})
			cancel()
			if err == nil {
				// For testcontainers and scripts/test-image.
				return engine, os.Setenv("DOCKER_HOST", host)
			}
			engine.Close()
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no engine answers: %w; start it, or set DOCKER_HOST", errors.Join(errs...))
}

// prepareTestcontainers sets what testcontainers reads from the environment,
// where the user has not. It has to be called before testcontainers is used:
// the first call reads the variables, further ones do not.
func prepareTestcontainers(ctx context.Context, engine *client.Client, registry bool) {
	tclog.SetDefault(tclog.NewNoopLogger())
	setenv := func(name, value string) {
		if _, set := os.LookupEnv(name); !set {
			os.Setenv(name, value)
		}
	}
	// Ryuk removes the containers of runs that were killed. It is an image to
	// pull itself; without it, removeOrphans does so at the next run.
	//lint:ignore SA1019 the only place that has the image's name
	ryuk := testcontainers.ReaperDefaultImage
	if !present(ctx, engine, ryuk) && (!registry || pull(ctx, engine, ryuk, firstProgress) != nil) {
		setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	}
	// With an engine inside this very container, published ports are here,
	// not at the gateway where testcontainers would look for them.
	_, err := os.Stat("/.dockerenv")
	if _, ifErr := net.InterfaceByName("docker0"); err == nil && ifErr == nil && strings.HasPrefix(os.Getenv("DOCKER_HOST"), "unix:") {
		setenv("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
	}
}

// awaitReady reads where the server is now and polls until it accepts a
// connection.
func (d *dockerServer) awaitReady(ctx context.Context) error {
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

// direct returns the address of the server in the container's own network, if
// that can be reached from here. It avoids Docker's proxy, which copies all that
// goes through the published port and takes a sixth of the tests' time. A server
// that may end keeps the published port: a connection to it is refused at once
// after the end, but nothing answers at a container's own address then.
func (d *dockerServer) direct(ctx context.Context) string {
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
		return "" // such as a wrong password: another network has that address too
	}
	if err := conn.Close(ctx); err != nil {
		return ""
	}
	return u.String()
}

func (d *dockerServer) url() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.address
}

func (d *dockerServer) describe() string {
	return fmt.Sprintf("Docker image %s, container %.12s", d.image, d.container.GetContainerID())
}

func (d *dockerServer) stop(ctx context.Context) error {
	timeout := stopTimeout
	if err := d.container.Stop(ctx, &timeout); err != nil {
		return fmt.Errorf("stop the container: %w", err)
	}
	return nil
}

func (d *dockerServer) kill(ctx context.Context) error {
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

func (d *dockerServer) restart(ctx context.Context) error {
	if err := d.stop(ctx); err != nil {
		return err
	}
	if err := d.container.Start(ctx); err != nil {
		return fmt.Errorf("restart the container: %w", err)
	}
	return d.awaitReady(ctx)
}

func (d *dockerServer) close(ctx context.Context) error {
	defer d.engine.Close()
	// Nothing in it is worth an orderly end.
	return testcontainers.TerminateContainer(d.container,
		testcontainers.StopContext(ctx), testcontainers.StopTimeout(0))
}
