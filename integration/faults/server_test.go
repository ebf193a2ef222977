package faults

import (
	"context"
	"log"
	"sync"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/pglimittest"
)

// server is a PostgreSQL server that a fault breaks.
type server struct {
	// url returns the URL of a database for a superuser. A restart or a failover may change
	// it: new connections follow.
	url func() string
	// way returns the URL that the load's connections dial, such as that of a proxy.
	// Default: url.
	way func() string
	// kill ends all processes with SIGKILL; restart starts the server again.
	kill, restart func(context.Context) error
	// local reports whether its processes run on this machine, outside of a container.
	local bool
	// create creates a database. Default: CREATE DATABASE.
	create func() (address string)
	// workers are those of a Citus cluster.
	workers []*pglimittest.Server
}

// usual is the server of all faults that need no other. It listens on TCP, so that a
// proxy can be before it.
var usual = sync.OnceValues(func() (*pglimittest.Server, error) {
	return pglimittest.StartOwn(context.Background(), log.Printf, durable, pglimittest.OverTCP)
})

// durable makes the server write everything to disk before it acknowledges.
func durable(settings map[string]string) {
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		settings[name] = "on"
	}
}

var usualStarted bool

func usualServer(t *testing.T) *server {
	t.Helper()
	own := must.OK(usual())(t)
	usualStarted = true
	return &server{url: own.URL, kill: own.Kill, restart: own.Restart, local: own.Backend() == "local"}
}

func closeUsual() error {
	if !usualStarted {
		return nil
	}
	own, err := usual()
	if err != nil {
		return err
	}
	return own.Close()
}

// needLocal fails the test unless the server's processes can be reached from here.
func (s *server) needLocal(t *testing.T) {
	t.Helper()
	if !s.local {
		t.Fatal("this needs PostgreSQL's programs on this machine: run make faults, or set PGLIMIT_TEST_BACKEND=local")
	}
}

// dial connects to a server whose address may change.
func dial(url func() string) *testworld.Dialer { return testworld.NewDialer(url) }
