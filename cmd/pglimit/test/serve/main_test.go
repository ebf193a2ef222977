// Package serve tests pglimit serve: the command over a PostgreSQL server, and its OpenAPI
// document.
package serve

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"strings"
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
	answer := must.OK(http.DefaultClient.Do(r))(t)
	defer answer.Body.Close()
	var text bytes.Buffer
	must.OK(text.ReadFrom(answer.Body))(t)
	return answer, text.String()
}

// terminate returns a function that sends SIGTERM to a program.
func terminate(p *os.Process) func() { return func() { _ = p.Signal(syscall.SIGTERM) } }

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
