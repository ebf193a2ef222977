package pglimittest

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pglimit/pglimit/internal/dockerpg"
)

// envImage is the environment variable that names the image to use.
const envImage = "PGLIMIT_TEST_IMAGE"

const (
	officialImage = "postgres:17"
	ownVersion    = "17"
	ownImage      = "pglimit-test-postgres:" + ownVersion

	firstProgress = 20 * time.Second // a working registry has begun by then
	hopelessly    = 3 * time.Second  // if an image of our own shows that pulling failed before
)

// officialImages are used if the engine has one, in this order.
var officialImages = []string{
	officialImage, "postgres:17-alpine", "postgres:18", "postgres:18-alpine", "postgres:latest",
	"postgres:alpine", "postgres:16", "postgres:16-alpine", "postgres:15", "postgres:15-alpine",
	"postgres:14", "postgres:14-alpine", "postgres:13", "postgres:13-alpine",
}

// startDocker starts a container of the best available image, with server settings by name.
func startDocker(ctx context.Context, logf func(string, ...any), settings map[string]string) (*dockerpg.Server, error) {
	if err := dockerpg.Engine(ctx); err != nil {
		return nil, fmt.Errorf("no engine answers: %w; start it, or set DOCKER_HOST", err)
	}
	image, err := chooseImage(ctx, logf)
	if err != nil {
		return nil, err
	}
	return dockerpg.Start(ctx, dockerpg.Options{
		Image: image, Name: "pglimit-test-" + strings.ToLower(rand.Text()[:8]), Password: rand.Text(), Settings: settings, Query: "sslmode=disable",
	})
}

// chooseImage returns an image that the engine has, after pulling or building it if
// needed.
func chooseImage(ctx context.Context, logf func(string, ...any)) (string, error) {
	if name := os.Getenv(envImage); name != "" {
		if dockerpg.Present(ctx, name) == nil {
			return name, nil
		}
		logf("pulling %s", name)
		if err := pull(ctx, name, firstProgress); err != nil {
			return "", fmt.Errorf("%s is %s, which the engine does not have and cannot pull: %w", envImage, name, err)
		}
		return name, nil
	}
	for _, name := range officialImages {
		if dockerpg.Present(ctx, name) == nil {
			return name, nil
		}
	}
	own := dockerpg.Present(ctx, ownImage) == nil
	bound := firstProgress
	if own {
		bound = hopelessly
	} else {
		logf("pulling %s", officialImage)
	}
	pullErr := pull(ctx, officialImage, bound)
	if pullErr == nil {
		return officialImage, nil
	}
	if own {
		return ownImage, nil
	}
	logf("pulling failed: %v", pullErr)
	if err := buildImage(ctx, logf); err != nil {
		return "", fmt.Errorf("pull %s: %w; build %s: %w", officialImage, pullErr, ownImage, err)
	}
	return ownImage, nil
}

// pull pulls an image from its registry. It fails if there is no progress within bound.
func pull(ctx context.Context, image string, bound time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(bound, func() { cancel(errors.New("the registry does not answer")) })
	defer timer.Stop()
	cmd := exec.CommandContext(ctx, "docker", "pull", image)
	last, err := follow(cmd, func(string) { timer.Stop() })
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return fmt.Errorf("docker pull: %w: %s", err, last)
	}
	return nil
}

// follow runs cmd, passes the lines of its output on, and returns the last one.
func follow(cmd *exec.Cmd, line func(string)) (last string, err error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return "", err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		last = lines.Text()
		line(last)
	}
	return last, cmd.Wait()
}

// buildImage runs scripts/test-image.
func buildImage(ctx context.Context, logf func(string, ...any)) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "scripts", "test-image"), ownVersion)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // on SIGTERM it removes its files
	if last, err := follow(cmd, func(line string) { logf("%s", line) }); err != nil {
		return fmt.Errorf("scripts/test-image: %w: %s", err, last)
	}
	return nil
}

// moduleRoot returns the directory with scripts/test-image: the working directory or one
// above.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		_, modErr := os.Stat(filepath.Join(dir, "go.mod"))
		_, scriptErr := os.Stat(filepath.Join(dir, "scripts", "test-image"))
		if modErr == nil && scriptErr == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("scripts/test-image is not above the working directory: run this within pglimit's sources")
		}
	}
	return dir, err
}
