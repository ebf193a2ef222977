package ratelimit

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// env returns a function that reads variables, as name and value, one after the other.
func env(variables ...string) func(string) string {
	return func(name string) string {
		for i := 0; i+1 < len(variables); i += 2 {
			if variables[i] == name {
				return variables[i+1]
			}
		}
		return ""
	}
}

// TestReadEnv checks defaults, values and faults.
func TestReadEnv(t *testing.T) {
	t.Parallel()
	e, err := ReadEnv(env())
	if err != nil || e.Port != 8080 || e.GRPCPort != 8081 || e.DebugPort != 6070 || e.ConfigType != "FILE" || !e.WatchRoot || e.NearLimit != .8 || e.MaxAge != 24*time.Hour {
		t.Errorf("defaults %+v, error %v", e, err)
	}
	e, err = ReadEnv(env("PORT", "0", "USE_PROMETHEUS", "TRUE", "XDS_CLIENT_BACKOFF_MAX_INTERVAL", "1m30s", "COUNT_EACH", "1", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a:b,c=d"))
	if err != nil || e.Port != 0 || !e.Prometheus || e.LongestWait != 90*time.Second || !e.CountEach {
		t.Errorf("values %+v, error %v", e, err)
	}
	for _, c := range [][3]string{
		{"PORT", "65536", "PORT is \"65536\": must be a whole number of at most 65535"},
		{"SHADOW_MODE", "maybe", "must be true or false"},
		{"GRPC_MAX_CONNECTION_AGE", "0s", "must be a positive duration"},
		{"NEAR_LIMIT_RATIO", "NaN", "must be above 0, and at most 1"},
		{"CONFIG_TYPE", "GRPC", "must be FILE or GRPC_XDS_SOTW"},
		{"GRPC_SERVER_USE_TLS", "true", "needs GRPC_SERVER_TLS_CERT"},
		{"GRPC_CLIENT_TLS_CACERT", "ca", "needs GRPC_SERVER_USE_TLS"},
		{"GRPC_CLIENT_TLS_SAN", "envoy", "needs GRPC_CLIENT_TLS_CACERT"},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "crt", "need each other"},
		{"CONFIG_GRPC_XDS_NODE_METADATA", "a", "must be name=value"},
	} {
		if _, err := ReadEnv(env(c[0], c[1])); err == nil || !strings.Contains(err.Error(), c[2]) || !strings.Contains(err.Error(), c[0]) {
			t.Errorf("%s=%s: error %v, want %s", c[0], c[1], err, c[2])
		}
	}
}

// addresses gets the addresses that Run logs.
type addresses struct {
	slog.Handler
	all chan string
}

func (a addresses) Enabled(context.Context, slog.Level) bool { return true }
func (a addresses) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "listening" {
		r.Attrs(func(attr slog.Attr) bool { a.all <- attr.Value.String(); return true })
	}
	return nil
}

// identityFiles writes a certificate for localhost, which also signs itself, with its key.
func identityFiles(t *testing.T, dir, name string) (pair tls.Certificate) {
	t.Helper()
	key := must.OK(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der := must.OK(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	raw := must.OK(x509.MarshalPKCS8PrivateKey(key))(t)
	crt, private := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
	put(t, dir, map[string]string{name + ".crt": string(crt), name + ".key": string(private)})
	pair = must.OK(tls.X509KeyPair(crt, private))(t)
	return pair
}

// TestRun starts the whole as a gateway does: with mutual TLS, files, health checks, /json and
// metrics, and ends it.
func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, dir, map[string]string{"rl/config/a.yaml": twoLimits})
	pair, envoy, stranger := identityFiles(t, dir, "localhost"), identityFiles(t, dir, "envoy"), identityFiles(t, dir, "stranger")
	file := func(name string) string { return filepath.Join(dir, name) }
	e := must.OK(ReadEnv(env("HOST", "127.0.0.1", "PORT", "0", "DEBUG_HOST", "127.0.0.1", "DEBUG_PORT", "0", "GRPC_HOST", "localhost", "GRPC_PORT", "0",
		"USE_PROMETHEUS", "true", "PROMETHEUS_ADDR", "127.0.0.1:0", "RUNTIME_ROOT", dir, "RUNTIME_SUBDIRECTORY", "rl", "LIMIT_RESPONSE_HEADERS_ENABLED", "true",
		"GRPC_SERVER_USE_TLS", "true", "GRPC_SERVER_TLS_CERT", file("localhost.crt"), "GRPC_SERVER_TLS_KEY", file("localhost.key"),
		"GRPC_CLIENT_TLS_CACERT", file("clients.crt"), "GRPC_CLIENT_TLS_SAN", "envoy")))(t)
	var both strings.Builder
	for _, name := range []string{"envoy.crt", "stranger.crt"} {
		data := must.OK(os.ReadFile(file(name)))(t)
		both.Write(data)
	}
	put(t, dir, map[string]string{"clients.crt": both.String()})
	listening, ended := make(chan string, 10), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- Run(ctx, e, func(context.Context, func()) (Limiter, error) {
			return limiter.NewMemory(&limiter.Config{Now: func() time.Time { return start }}), nil
		}, slog.New(addresses{all: listening}))
	}()
	var at [4]string // gRPC, HTTP, debugging, Prometheus
	for i := range at {
		select {
		case at[i] = <-listening:
		case err := <-ended:
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	leaf := must.OK(x509.ParseCertificate(pair.Certificate[0]))(t)
	roots.AddCert(leaf)
	_, port, _ := strings.Cut(at[0], ":")
	dial := func(certificates ...tls.Certificate) *grpc.ClientConn {
		conn := must.OK(grpc.NewClient("localhost:"+port, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: certificates}))))(t)
		return conn
	}
	request := &pb.RateLimitRequest{Domain: "d", Descriptors: []*rlcommon.RateLimitDescriptor{descriptorOf("user", "a")}}
	for who, certificates := range map[string][]tls.Certificate{"nobody": nil, "a stranger": {stranger}, "Envoy": {envoy}} {
		conn := dial(certificates...)
		r, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request)
		if (err == nil) != (who == "Envoy") || err == nil && (brief(r) != "OK OK:2/3" || len(r.GetResponseHeadersToAdd()) != 3) {
			t.Errorf("%s: response %v, error %v", who, r, err)
		}
		if err == nil {
			h, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
			if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("health %v, error %v", h, err)
			}
		}
		_ = conn.Close()
	}
	// A key that does not fit its certificate leaves the last pair in use.
	put(t, dir, map[string]string{"localhost.key": "no key"})
	conn := dial(envoy)
	if _, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request); err != nil {
		t.Errorf("after a bad key: %v", err)
	}
	_ = conn.Close()
	served(t, at)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// served: the program answers on each of its addresses over HTTP.
func served(t *testing.T, at [4]string) {
	t.Helper()
	for _, c := range []struct{ url, body, want string }{
		{at[1] + "/healthcheck", "", "OK"},
		{at[1] + "/json", `{"domain": "d", "hitsAddend": 3, "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}`, "OVER_LIMIT"},
		{at[2] + "/rlconfig", "", "d.user: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false\n"},
		{at[3] + "/metrics", "", `ratelimit_service_rate_limit_over_limit{domain="d",key1="user"} 2`},
	} {
		response := must.OK(http.Post("http://"+c.url, "application/json", strings.NewReader(c.body)))(t)
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || !strings.Contains(string(body), c.want) {
			t.Errorf("%s: %s, error %v; want %s", c.url, body, err, c.want)
		}
	}
}

// TestRunFails checks the errors of a start.
func TestRunFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, dir, map[string]string{"bad": "no PEM"})
	for want, variables := range map[string][]string{
		"GRPC_SERVER_TLS_CERT":              {"GRPC_SERVER_USE_TLS", "true", "GRPC_SERVER_TLS_CERT", dir + "/bad", "GRPC_SERVER_TLS_KEY", dir + "/bad"},
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT": {"CONFIG_TYPE", "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS", "true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", dir + "/bad"},
		"203.0.113.1":                       {"HOST", "203.0.113.1", "DEBUG_PORT", "0", "GRPC_UDS", dir + "/sock"},
	} {
		e, err := ReadEnv(env(append(variables, "FORCE_START_WITHOUT_INITIAL_CONFIG", "true")...))
		if err != nil {
			t.Fatal(err)
		}
		open := func(context.Context, func()) (Limiter, error) { return limiter.NewMemory(nil), nil }
		if err = Run(t.Context(), e, open, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
