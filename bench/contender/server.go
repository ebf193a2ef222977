package contender

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pglimit/pglimit/bench/proc"
)

// Redis is a running Redis server.
type Redis struct {
	Addr, Password string
	// Version is such as "7.0.15".
	Version string
	cmd     *exec.Cmd
	input   io.Closer // the shell kills the server at its end
	output  bytes.Buffer
}

// StartRedis starts redis-server, which has to be in PATH, and returns once it answers.
// Close ends it.
func StartRedis(ctx context.Context) (*Redis, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, errors.New("redis-server is not installed (Debian: apt-get install redis-server)")
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().(*net.TCPAddr)
	l.Close() // the port is free now
	r := &Redis{Addr: addr.String(), Password: rand.Text()}
	// The shell's input ends with this program, also if that is killed. Redis writes nothing
	// to disk, which is fastest and how most limiters run it. Settings go through its input, so
	// that the password shows in no process list.
	r.cmd = exec.Command("sh", "-c", `trap '' INT; printf %s "$SETTINGS" | redis-server - & read -r end; kill -9 $!`)
	r.cmd.Env = append(os.Environ(), fmt.Sprintf(
		"SETTINGS=bind 127.0.0.1\nport %d\nrequirepass %s\nsave \"\"\nappendonly no\n", addr.Port, r.Password))
	if r.input, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	r.cmd.Stdout, r.cmd.Stderr = &r.output, &r.output
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	client := redis.NewClient(&redis.Options{
		Addr: r.Addr, Password: r.Password, MaxRetries: 100, MinRetryBackoff: 20 * time.Millisecond, MaxRetryBackoff: 100 * time.Millisecond,
	})
	defer client.Close()
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("start Redis: %w\n%s", err, r.output.String())
	}
	_, info, _ = strings.Cut(info, "redis_version:")
	r.Version, _, _ = strings.Cut(info, "\r\n")
	return r, nil
}

// Processor is the clock of the server's process, and of the shell that waits for its end.
func (r *Redis) Processor() (time.Duration, error) { return proc.Tree(r.cmd.Process.Pid)() }

// Close ends the server.
func (r *Redis) Close() {
	_ = r.input.Close()
	_ = r.cmd.Wait() // its output says how it ended
}
