package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

func TestMain(m *testing.M) { testdb.Main(m, migrations.Up) }

// TestREADME sends the README's requests, with a fixed clock.
func TestREADME(t *testing.T) {
	noon := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	l := testdb.Limiter(t, testdb.Pool(t, testdb.Migrated), &limiter.Config{Now: func() time.Time { return noon }})
	server := httptest.NewServer(newHandler(l))
	defer server.Close()
	checkREADME(t, server.URL)
}

// TestRun: the program serves over an empty database, and ends when its context does.
func TestRun(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, testdb.Empty.New(t), listener) }()
	res, err := http.Post("http://"+listener.Addr().String()+"/login", "", nil)
	if err != nil {
		t.Fatal(err, <-ended)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusForbidden { // it does not know whose login it is
		t.Errorf("got %s", res.Status)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
