package servers

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pglimit/pglimit/bench/processor"
)

// RedisPersistence is what Redis writes to disk: nothing, which is fastest and how most
// limiters run it.
const RedisPersistence = `none (save "", appendonly no): a restart forgets every count`

// Redis is a running Redis server.
type Redis struct {
	Addr, Password string
	version        string
	dir            string
	cmd            *exec.Cmd
	output         bytes.Buffer
	ended          chan struct{} // closed when the process has ended
}

// StartRedis starts redis-server, which has to be in PATH, in a temporary
// directory, and returns once it answers. Close ends it.
func StartRedis(ctx context.Context) (_ *Redis, err error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("redis-server is not installed (Debian: apt-get install redis-server)")
	}
	r := &Redis{ended: make(chan struct{})}
	if r.dir, err = os.MkdirTemp("", "pglimit-redis-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = r.Close() // the first error is reported
		}
	}()
	secret := make([]byte, 16)
	rand.Read(secret) // never fails
	r.Password = fmt.Sprintf("%x", secret)
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	r.Addr = fmt.Sprintf("127.0.0.1:%d", port)

	// Settings go through standard input, so that the password shows in no process list.
	r.cmd = exec.Command(program, "-")
	r.cmd.Dir = r.dir
	r.cmd.Stdin = strings.NewReader(fmt.Sprintf(
		"bind 127.0.0.1\nport %d\nrequirepass %s\nsave \"\"\nappendonly no\n", port, r.Password))
	r.cmd.Stdout, r.cmd.Stderr = &r.output, &r.output
	endWithParent(r.cmd)
	if err := r.start(); err != nil {
		return nil, err
	}
	if err := r.awaitReady(ctx); err != nil {
		return nil, fmt.Errorf("start Redis: %w", err)
	}
	return r, nil
}

// start runs the process on a thread that stays until it has ended: the system ties a
// parent's death signal to the thread that started the child.
func (r *Redis) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := r.cmd.Start()
		started <- err
		if err == nil {
			_ = r.cmd.Wait() // its output says how it ended
			close(r.ended)
		}
	}()
	err := <-started
	if err != nil {
		r.cmd = nil
	}
	return err
}

func (r *Redis) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client := redis.NewClient(&redis.Options{Addr: r.Addr, Password: r.Password, MaxRetries: -1})
	defer client.Close()
	for {
		info, err := client.Info(ctx, "server").Result()
		if err == nil {
			_, r.version, _ = strings.Cut(info, "redis_version:")
			r.version, _, _ = strings.Cut(r.version, "\r\n")
			return nil
		}
		select {
		case <-r.ended:
			return fmt.Errorf("it ended:\n%s", r.output.String())
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w; last attempt: %v", ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Processor is the clock of the server's process.
func (r *Redis) Processor() (time.Duration, error) { return processor.Tree(r.cmd.Process.Pid)() }

// Version is the server's version, such as "7.0.15".
func (r *Redis) Version() string { return r.version }

// Close ends the server and removes its directory.
func (r *Redis) Close() error {
	var err error
	if r.cmd != nil {
		if err = r.cmd.Process.Kill(); errors.Is(err, os.ErrProcessDone) {
			err = nil
		}
		<-r.ended
	}
	return errors.Join(err, os.RemoveAll(r.dir))
}

// freePort returns a port of 127.0.0.1 that is free right now.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
