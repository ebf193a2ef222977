package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage"
	"github.com/pglimit/pglimit/internal/localpg"
)

// Playground is a `pglimit playground`, running or not.
type Playground struct {
	URL string // without a slash at its end

	t                 T
	command, database string
	cmd               *exec.Cmd
	ended             chan struct{} // closed when cmd has ended, with err
	err               error
	stderr            bytes.Buffer
}

// Start starts the command over a database, on any free port. It is stopped when the test
// ends.
func Start(t T, command, database string) *Playground {
	t.Helper()
	return StartAt(t, command, database, "localhost:0")
}

// StartAt is Start at an address.
func StartAt(t T, command, database, addr string) *Playground {
	t.Helper()
	p := &Playground{t: t, command: command, database: database}
	p.start(addr)
	t.Cleanup(p.Stop)
	return p
}

// Again starts it again, at the same address.
func (p *Playground) Again() {
	p.t.Helper()
	u, err := url.Parse(p.URL)
	if err != nil {
		p.t.Fatalf("%v", err)
	}
	p.start(u.Host)
}

func (p *Playground) start(addr string) {
	p.t.Helper()
	p.stderr.Reset()
	p.cmd = exec.Command(p.command, "playground", "--addr", addr, "--json", "--yes")
	p.cmd.Env = append(os.Environ(), "DATABASE_URL="+p.database)
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		p.t.Fatalf("start the playground: %v", err)
	}
	late := time.AfterFunc(stepTimeout, func() { p.cmd.Process.Kill() })
	var ready struct{ URL string }
	readErr := json.NewDecoder(stdout).Decode(&ready)
	late.Stop()
	p.ended = make(chan struct{})
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	if readErr != nil {
		p.cmd.Process.Kill()
		<-p.ended
		p.t.Fatalf("the playground at %s printed no URL: %v (%v): %s", addr, readErr, p.err, &p.stderr)
	}
	u, err := url.Parse(ready.URL)
	if err != nil || u.Host == "" {
		p.t.Fatalf("the playground printed the URL %q", ready.URL)
	}
	p.URL = u.Scheme + "://" + u.Host
}

// Stop ends it as Ctrl-C does, even if tabs are connected.
func (p *Playground) Stop() {
	p.t.Helper()
	if p.cmd.Process.Signal(os.Interrupt) != nil {
		return // it has ended
	}
	late := time.AfterFunc(stepTimeout, func() { p.cmd.Process.Kill() })
	<-p.ended
	if !late.Stop() {
		p.t.Errorf("the playground did not end within %v of an interrupt", stepTimeout)
	} else if p.err != nil {
		p.t.Errorf("the interrupted playground ended with %v: %s", p.err, &p.stderr)
	}
}

// Kill ends it by SIGKILL.
func (p *Playground) Kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatalf("kill the playground: %v", err)
	}
	<-p.ended
}

// Dashboard is a dashboard over a Source, in this process, running or not.
type Dashboard struct {
	URL   string // without a slash at its end
	Token string

	t      T
	config dashboard.Config
	stop   context.CancelFunc
	ended  chan error
}

// freeAddress returns an address at which a server can also start again.
func freeAddress(t T) string {
	t.Helper()
	port, err := localpg.FreePort()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return fmt.Sprint("localhost:", port)
}

// StartDashboard serves a dashboard on any free port, with a token that allows changes. Its
// page loads data every refresh. It is stopped when the test ends.
func StartDashboard(t T, source dashboard.Source, refresh time.Duration) *Dashboard {
	t.Helper()
	d := &Dashboard{t: t, Token: dashboard.NewToken()}
	d.config = dashboard.Config{
		Source: source, Version: "v0.9.0", Database: "shop at db.example:5432, PostgreSQL 15.18", Host: "localhost",
		Token: d.Token, Refresh: refresh, Logger: slog.New(slog.DiscardHandler),
	}
	d.start(freeAddress(t))
	t.Cleanup(d.Stop)
	return d
}

func (d *Dashboard) start(addr string) {
	d.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	d.stop, d.ended = stop, make(chan error, 1)
	page, err := dashboard.New(d.config)
	if err != nil {
		d.t.Fatalf("%v", err)
	}
	listeners, url, err := webpage.Listen(ctx, addr)
	if err != nil {
		d.t.Fatalf("%v", err)
	}
	d.URL = url
	go func(listeners []net.Listener) { d.ended <- page.Serve(ctx, listeners...) }(listeners)
}

// Again starts it again, at the same address.
func (d *Dashboard) Again() {
	d.t.Helper()
	d.start(d.URL[len("http://"):])
}

// Stop ends it.
func (d *Dashboard) Stop() {
	d.t.Helper()
	if d.stop == nil {
		return // it has ended
	}
	d.stop()
	d.stop = nil
	if err := <-d.ended; err != nil {
		d.t.Errorf("the dashboard ended with %v", err)
	}
}
