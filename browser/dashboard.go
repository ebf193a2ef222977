package browser

import (
	"context"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/pglimit/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/internal/site"
)

// Dashboard is a dashboard over a Source, in this process, running or not.
type Dashboard struct {
	URL   string // without a slash at its end
	Token string

	t      T
	config dashboard.Config
	stop   context.CancelFunc
	ended  chan error
}

// StartDashboard serves a dashboard on any free port, with a token that allows changes. Its
// page loads data every refresh. It is stopped when the test ends. log gets the server's log.
func StartDashboard(t T, source dashboard.Source, refresh time.Duration, log io.Writer) *Dashboard {
	t.Helper()
	d := &Dashboard{t: t, Token: dashboard.NewToken()}
	d.config = dashboard.Config{
		Source: source, Version: "v0.9.0", Database: "shop at db.example:5432, PostgreSQL 15.18", Host: "localhost",
		Token: d.Token, Refresh: refresh, Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
	d.start("localhost:0")
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
	listeners, url, err := site.Listen(ctx, addr)
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
