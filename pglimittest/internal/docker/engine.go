package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
)

const pingTimeout = 5 * time.Second

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
				errs = append(errs, err) // shorter than the client's error
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

// prepareTestcontainers sets the environment variables of testcontainers that the user has
// not set. Call it before using testcontainers, which reads them only once.
func prepareTestcontainers(ctx context.Context, engine *client.Client, registry bool) {
	tclog.SetDefault(tclog.NewNoopLogger())
	setenv := func(name, value string) {
		if _, set := os.LookupEnv(name); !set {
			os.Setenv(name, value)
		}
	}
	// Ryuk removes the containers of killed runs, but its image must be pulled. Without
	// it, removeOrphans removes them at the next run.
	//lint:ignore SA1019 the only place that has the image's name
	ryuk := testcontainers.ReaperDefaultImage
	if !present(ctx, engine, ryuk) && (!registry || pull(ctx, engine, ryuk, firstProgress) != nil) {
		setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	}
	// If the engine runs in this container, published ports are here and not at the
	// gateway, which testcontainers would use.
	_, err := os.Stat("/.dockerenv")
	if _, ifErr := net.InterfaceByName("docker0"); err == nil && ifErr == nil && strings.HasPrefix(os.Getenv("DOCKER_HOST"), "unix:") {
		setenv("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
	}
}
