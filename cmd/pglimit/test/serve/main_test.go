// Package serve tests pglimit serve: the command over a PostgreSQL server, and its OpenAPI
// document.
package serve

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

func TestMain(m *testing.M) {
	testworld.BeCommand(commands.Main)
	testworld.Main(m, 4)
}

type server = testworld.Serving

var startWith, file, token = testworld.Serve, testworld.File, testworld.Token

// start starts a server with the policies over a database, on any free ports.
func start(t *testing.T, database string, args ...string) *server {
	t.Helper()
	return startWith(t, database, nil, args...)
}

// call sends a request, with JSON if the body is not empty, and headers as names and values.
func call(t *testing.T, method, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	r := must.OK(http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body)))(t)
	r.Close = true // an idle connection would be waited for at the end
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var text bytes.Buffer
	must.OK(text.ReadFrom(answer.Body))(t)
	return answer, text.String()
}

// certificate returns a certificate for localhost and its key, in PEM.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private := must.OK(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	about := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	der := must.OK(x509.CreateCertificate(rand.Reader, about, about, &private.PublicKey, private))(t)
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", must.OK(x509.MarshalPKCS8PrivateKey(private))(t))
}

// endUnderLoad ends a program by SIGTERM while clients send requests on connections that they
// keep. Each goes on until an answer, or HTTP/2, ends its connection. No answer may be cut off.
func endUnderLoad(t *testing.T, process *os.Process, url, body string) {
	t.Helper()
	var sent atomic.Int64
	client := func() error {
		reused, kept, transport := false, false, &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		defer transport.CloseIdleConnections()
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused },
			// A busy client may give its connection up itself: net/http waits 50 ms for its own writer.
			PutIdleConn: func(err error) { kept = err == nil },
		})
		http2 := strings.HasPrefix(url, "https:") // PutIdleConn is not called then
		for first := true; ; first = false {
			idle := kept || http2 && !first
			reused, kept = false, false
			r, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
			if err != nil {
				return err
			}
			r.Header.Set("Content-Type", "application/json")
			answer, err := (&http.Client{Transport: transport}).Do(r)
			if err == nil {
				_, err = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
			switch ended := idle && !reused; {
			case ended && http2:
				return nil
			case ended:
				return errors.New("the connection ended between two requests")
			case err != nil || answer.Close:
				return err
			case sent.Add(1) == 300:
				_ = process.Signal(syscall.SIGTERM)
			}
		}
	}
	var running sync.WaitGroup
	for range 32 {
		running.Go(func() {
			if err := client(); err != nil {
				t.Errorf("of %d requests: %v", sent.Load(), err)
			}
		})
	}
	running.Wait()
}
