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

// Program is a running program. It ends with this one, also if that is killed.
type Program struct {
	cmd    *exec.Cmd
	input  io.Closer // the shell kills the program at its end
	output bytes.Buffer
}

// StartProgram starts a shell's command in this program's environment and more variables. Close
// ends it.
func StartProgram(command string, variables ...string) (*Program, error) {
	p := &Program{cmd: exec.Command("sh", "-c", "trap '' INT; "+command+" & read -r end; kill -9 $!")}
	p.cmd.Env = append(os.Environ(), variables...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	var err error
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return p, p.cmd.Start()
}

// Processor is the clock of the program's process, and of the shell that waits for its end.
func (p *Program) Processor() (time.Duration, error) { return proc.Tree(p.cmd.Process.Pid)() }

// Close ends the program, and returns what it has written.
func (p *Program) Close() string {
	_ = p.input.Close()
	_ = p.cmd.Wait() // its output says how it ended
	return p.output.String()
}

// FreePort returns an address of this machine on which nothing listens.
func FreePort() (*net.TCPAddr, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return l.Addr().(*net.TCPAddr), l.Close()
}

// Redis is a running Redis server.
type Redis struct {
	*Program
	Addr, Password string
	// Version is such as "7.0.15".
	Version string
}

// StartRedis starts redis-server, which has to be in PATH, and returns once it answers.
// Close ends it.
func StartRedis(ctx context.Context) (*Redis, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, errors.New("redis-server is not installed (Debian: apt-get install redis-server)")
	}
	addr, err := FreePort()
	if err != nil {
		return nil, err
	}
	r := &Redis{Addr: addr.String(), Password: rand.Text()}
	// Redis writes nothing to disk, which is fastest and how most limiters run it. Settings go
	// through its input, so that the password shows in no process list.
	r.Program, err = StartProgram(`printf %s "$SETTINGS" | redis-server -`, fmt.Sprintf(
		"SETTINGS=bind 127.0.0.1\nport %d\nrequirepass %s\nsave \"\"\nappendonly no\n", addr.Port, r.Password))
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(&redis.Options{
		Addr: r.Addr, Password: r.Password, MaxRetries: 100, MinRetryBackoff: 20 * time.Millisecond, MaxRetryBackoff: 100 * time.Millisecond,
	})
	defer client.Close()
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return nil, fmt.Errorf("start Redis: %w\n%s", err, r.Close())
	}
	_, info, _ = strings.Cut(info, "redis_version:")
	r.Version, _, _ = strings.Cut(info, "\r\n")
	return r, nil
}
