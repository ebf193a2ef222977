package embedded

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"

	"github.com/pglimit/pglimit/internal/dockerpg"
)

const image = "postgres:17-alpine"

// container is a PostgreSQL server in a Docker container. Its data are in a volume.
type container struct{ *dockerpg.Server }

func (c container) Version() string { return c.Server.Version() + " (Docker)" }

// pull gets the image of the container from the Docker engine, or pulls it.
func pull(ctx context.Context, logf func(string, ...any)) error {
	err := dockerpg.Present(ctx, image)
	if err == nil || errors.Is(err, exec.ErrNotFound) {
		return err
	}
	logf("no PostgreSQL server found: pulling %s, to run one in Docker", image)
	_, err = dockerpg.Command(ctx, "pull", image)
	return err
}

// startContainer starts a server on the volume of dir. Once the server has answered for the
// first time, dir has its password, which also names the volume.
func startContainer(ctx context.Context, dir Dir) (container, error) {
	password, err := os.ReadFile(dir.Password())
	isNew := errors.Is(err, fs.ErrNotExist)
	if isNew {
		password = []byte(rand.Text())
	} else if err != nil {
		return container{}, err
	}
	name := fmt.Sprintf("pglimit-%.8x", sha256.Sum256(password))
	for left := name; left != ""; { // of a keeper that was killed; it may be stopping
		_, _ = dockerpg.Command(ctx, "rm", "-f", name)
		if left, err = dockerpg.Command(ctx, "ps", "-aq", "--filter", "name="+name); err != nil {
			return container{}, err
		}
	}
	s, err := dockerpg.Start(ctx, dockerpg.Options{
		Image: image, Name: name, Volume: name, Password: string(password), Query: "sslmode=disable&require_auth=scram-sha-256",
		Settings: map[string]string{"log_min_messages": "fatal"}, Log: os.Stderr, // the keeper's log
	})
	if err == nil && isNew {
		if err = os.WriteFile(dir.Password(), password, 0o600); err != nil {
			err = errors.Join(err, s.Close())
		}
	}
	if err == nil {
		return container{s}, nil
	}
	if isNew { // the volume may be half made
		_ = os.Remove(dir.Password())
		_, _ = dockerpg.Command(context.Background(), "volume", "rm", "-f", name)
	}
	return container{}, fmt.Errorf("%w; %s/keeper.log has its messages", err, dir)
}
