package docker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/moby/moby/client"
)

// ImageVariable is the environment variable that names the image to use.
const ImageVariable = "PGLIMIT_TEST_IMAGE"

const (
	officialImage = "postgres:17"
	ownVersion    = "17"
	ownImage      = "pglimit-test-postgres:" + ownVersion

	firstProgress = 20 * time.Second // a working registry has begun by then
	nextProgress  = time.Minute
	hopelessly    = 3 * time.Second // if an image of our own shows that pulling failed before
)

// officialImages are used if the engine has one, in this order.
var officialImages = []string{
	officialImage, "postgres:17-alpine", "postgres:18", "postgres:18-alpine", "postgres:latest",
	"postgres:alpine", "postgres:16", "postgres:16-alpine", "postgres:15", "postgres:15-alpine",
	"postgres:14", "postgres:14-alpine", "postgres:13", "postgres:13-alpine",
}

// chooseImage returns an image that the engine has, after pulling or building it if
// needed. registry is false if pulling is known to fail.
func chooseImage(ctx context.Context, engine *client.Client, logf func(string, ...any)) (name string, registry bool, _ error) {
	if name := os.Getenv(ImageVariable); name != "" {
		if present(ctx, engine, name) {
			return name, name != ownImage && !present(ctx, engine, ownImage), nil
		}
		logf("pulling %s", name)
		if err := pull(ctx, engine, name, firstProgress); err != nil {
			return "", false, fmt.Errorf("%s is %s, which the engine does not have and cannot pull: %w", ImageVariable, name, err)
		}
		return name, true, nil
	}
	for _, name := range officialImages {
		if present(ctx, engine, name) {
			return name, true, nil
		}
	}
	own := present(ctx, engine, ownImage)
	bound := firstProgress
	if own {
		bound = hopelessly
	} else {
		logf("pulling %s", officialImage)
	}
	pullErr := pull(ctx, engine, officialImage, bound)
	if pullErr == nil {
		return officialImage, true, nil
	}
	if own {
		return ownImage, false, nil
	}
	logf("pulling failed: %v", pullErr)
	if err := buildImage(ctx, logf); err != nil {
		return "", false, fmt.Errorf("pull %s: %w; build %s: %w", officialImage, pullErr, ownImage, err)
	}
	return ownImage, false, nil
}

// present reports whether the engine has the image.
func present(ctx context.Context, engine *client.Client, image string) bool {
	_, err := engine.ImageInspect(ctx, image)
	return err == nil
}

// pull pulls an image from its registry. It fails if there is no progress within bound at
// first, or within a minute later.
func pull(ctx context.Context, engine *client.Client, image string, bound time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(bound, func() { cancel(errors.New("the registry does not answer")) })
	defer timer.Stop()
	progress, err := engine.ImagePull(ctx, image, client.ImagePullOptions{})
	if err != nil {
		return causeOf(ctx, err)
	}
	for message, err := range progress.JSONMessages(ctx) {
		timer.Reset(nextProgress)
		if err == nil && message.Error != nil {
			err = message.Error
		}
		if err != nil {
			return causeOf(ctx, err)
		}
	}
	return nil
}

// causeOf returns the cause of ctx's cancellation or, without one, err.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// buildImage runs scripts/test-image.
func buildImage(ctx context.Context, logf func(string, ...any)) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "scripts", "test-image"), ownVersion)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // on SIGTERM it removes its files
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	last := ""
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		last = lines.Text()
		logf("%s", last)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("scripts/test-image: %w: %s", err, last)
	}
	return nil
}

// moduleRoot returns the directory with scripts/test-image: the working directory or one
// above.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		_, modErr := os.Stat(filepath.Join(dir, "go.mod"))
		_, scriptErr := os.Stat(filepath.Join(dir, "scripts", "test-image"))
		if modErr == nil && scriptErr == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("scripts/test-image is not above the working directory: run this within pglimit's sources")
		}
		dir = filepath.Dir(dir)
	}
}
