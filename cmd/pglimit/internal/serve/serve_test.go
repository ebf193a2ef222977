package serve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit"
	"github.com/pglimit/pglimit/internal/must"
)

// valid returns options that are valid.
func valid() Options {
	return Options{HTTP: "localhost:0", AccessLog: "errors", MaxConnections: 1, DrainTimeout: time.Second, Timeout: time.Second}
}

// TestOptions: an option that is not valid is named with its value, before anything listens. An
// address that other machines reach needs authentication, or --no-auth.
func TestOptions(t *testing.T) {
	t.Parallel()
	for want, set := range map[string]func(*Options){
		"":                                 func(*Options) {},
		"--http and --grpc are both empty": func(o *Options) { o.HTTP = "" },
		`--access-log is "some"`:           func(o *Options) { o.AccessLog = "some" },
		"--max-connections is 0":           func(o *Options) { o.MaxConnections = 0 },
		"--drain-delay is -1s":             func(o *Options) { o.DrainDelay = -time.Second },
		"--drain-timeout is 2h0m0s":        func(o *Options) { o.DrainTimeout = 2 * time.Hour },
		"--drain-timeout is 0s":            func(o *Options) { o.DrainTimeout = 0 },
		"--timeout is 0s":                  func(o *Options) { o.Timeout = 0 },
		"--no-auth contradicts":            func(o *Options) { o.NoAuth, o.Tokens = true, "f" },
		`--proxy-header is "X-Real-Ip"`:    func(o *Options) { o.ProxyHeader = "X-Real-Ip" },
		"--tls-cert and --tls-key need":    func(o *Options) { o.TLS.Cert = "f" },
		"--tls-client-ca needs":            func(o *Options) { o.TLS.ClientCA = "f" },
		`--trusted-proxies has "gateway"`:  func(o *Options) { o.TrustedProxies = []string{"10.0.0.1", "gateway"} },
		"--http is :8080, which other":     func(o *Options) { o.HTTP = ":8080" },
		"--http is 0.0.0.0:1, which other": func(o *Options) { o.HTTP = "0.0.0.0:1" },
		"--grpc is host.example:1, which":  func(o *Options) { o.GRPC = "host.example:1" },
		"--ratelimit-config and --ratelim": func(o *Options) { o.RateLimit = &ratelimit.Env{} },
		"--ratelimit-config: lstat /nowhere": func(o *Options) {
			o.GRPC, o.RateLimit = "localhost:0", &ratelimit.Env{}
			o.RateLimit.ReadFrom("/nowhere")
		},
		`--http: the address "8080" is not`: func(o *Options) { o.HTTP = "8080" },
		"--tokens: open /nowhere":           func(o *Options) { o.Tokens = "/nowhere" },
		"--policies: open /nowhere":         func(o *Options) { o.Policies = "/nowhere" },
		"--tls-cert: open /nowhere":         func(o *Options) { o.TLS = TLSFiles{"/nowhere", "/nowhere", ""} },
	} {
		o := valid()
		set(&o)
		s, err := Prepare(t.Context(), o)
		if err == nil {
			s.Close()
		}
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, set := range []func(*Options){
		func(o *Options) { o.HTTP, o.NoAuth = "0.0.0.0:0", true },
		func(o *Options) { o.HTTP, o.GRPC = "", "127.0.0.1:0" },
		func(o *Options) { o.Admin = "0.0.0.0:0" }, // it shows no key then
		func(o *Options) {
			o.TrustedProxies, o.ProxyHeader = []string{"10.0.0.0/8", "::1", "127.0.0.1"}, "Forwarded"
		},
	} {
		o := valid()
		set(&o)
		s, err := Prepare(t.Context(), o)
		if err != nil {
			t.Error(err)
			continue
		}
		s.Close()
	}
}

// TestRoom: a connection above the bound is closed at once, and a closed one makes room.
func TestRoom(t *testing.T) {
	t.Parallel()
	var r room
	r.free.Store(2)
	l := r.bound(must.OK(net.Listen("tcp", "127.0.0.1:0"))(t))
	defer l.Close()
	accepted := make(chan net.Conn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c := must.OK(net.Dial("tcp", l.Addr().String()))(t)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	dial()
	one := <-accepted
	dial()
	<-accepted
	if _, err := dial().Read(make([]byte, 1)); err == nil || r.refused.Load() != 1 {
		t.Errorf("a third connection: %v, %d refused", err, r.refused.Load())
	}
	_ = one.Close()
	_ = one.Close() // gives its place back once
	dial()
	<-accepted
	if _, err := dial().Read(make([]byte, 1)); err == nil || r.free.Load() != 0 {
		t.Errorf("a third connection after one was closed: %v, %d free", err, r.free.Load())
	}
}

// TestAccessLog: it has what was chosen, without keys, and a client that makes errors does not
// fill it.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]map[int]bool{
		"none": {}, "errors": {401: true, 500: true}, "all": {200: true, 429: true, 401: true, 500: true},
	} {
		for _, status := range []int{200, 429, 401, 500} {
			var log strings.Builder
			s := &Server{options: Options{AccessLog: mode, Logger: slog.New(slog.NewTextHandler(&log, nil))}, telemetry: newTelemetry(t)}
			r := httptest.NewRequest("GET", "/v1/usage?policy=p&key=secret", nil)
			const times = 10_000
			for range times {
				s.observe(r, "/v1/usage", "web", status, time.Second)
			}
			lines := strings.Count(log.String(), "status=")
			if (lines > 0) != want[status] || mode == "errors" && lines >= times || strings.Contains(log.String(), "secret") {
				t.Errorf("%s: %d lines for status %d: %.300s", mode, lines, status, &log)
			}
		}
	}
}

// newTelemetry returns a telemetry without a database.
func newTelemetry(t *testing.T) *telemetry {
	return must.OK(startTelemetry(t.Context(), nil, "v", &room{}))(t)
}

// TestFollowed: changed files are used, those that are not valid are not, and a fault is logged
// once.
func TestFollowed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, "one")
	var used []string
	f := followed{what: "--file", paths: []string{path}, use: func(c [][]byte) error {
		if string(c[0]) == "bad" {
			return errors.New("it is bad")
		}
		used = append(used, string(c[0]))
		return nil
	}}
	var log strings.Builder
	logger, fault := slog.New(slog.NewTextHandler(&log, nil)), ""
	must.Succeed(t, f.start())
	for _, text := range []string{"one", "two", "bad", "bad", "", "two", "bad", "three"} {
		if text == "" {
			must.Succeed(t, os.Remove(path))
		} else {
			writeFile(t, path, text)
		}
		f.look(logger, &fault)
	}
	if got := strings.Join(used, " "); got != "one two three" || strings.Count(log.String(), "it is bad") != 2 || strings.Count(log.String(), "no such file") != 1 {
		t.Errorf("used %s; log %s", got, &log)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
}

// pair returns a certificate for localhost and its key in PEM, and its form for clients.
func pair(t *testing.T, serial int64) (cert, key []byte, both tls.Certificate) {
	t.Helper()
	private := must.OK(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	about := &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der := must.OK(x509.CreateCertificate(rand.Reader, about, about, &private.PublicKey, private))(t)
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must.OK(x509.MarshalPKCS8PrivateKey(private))(t)})
	return cert, key, must.OK(tls.X509KeyPair(cert, key))(t)
}

// TestTLS: clients need a certificate where they are asked for one, connections after a change
// of the files use it, and HTTP/2 is spoken.
func TestTLS(t *testing.T) {
	t.Parallel()
	var i identity
	api, adm := i.config(true, "h2", "http/1.1"), i.config(false, "h2", "http/1.1")
	clientCert, _, client := pair(t, 7)
	serve := func(c *tls.Config) string {
		l := must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
		server := &http.Server{TLSConfig: c, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.Proto)
		})}
		go func() { _ = server.ServeTLS(l, "", "") }()
		t.Cleanup(func() { _ = server.Close() })
		return "https://localhost:" + l.Addr().String()[len("127.0.0.1:"):]
	}
	get := func(url string, with ...tls.Certificate) (serial int64, proto string, err error) {
		transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: with}}
		defer transport.CloseIdleConnections()
		r, err := (&http.Client{Transport: transport}).Get(url)
		if err != nil {
			return 0, "", err
		}
		defer r.Body.Close()
		body := must.OK(io.ReadAll(r.Body))(t)
		return r.TLS.PeerCertificates[0].SerialNumber.Int64(), string(body), nil
	}
	cert, key, _ := pair(t, 1)
	must.Succeed(t, i.use([][]byte{cert, key, clientCert}))
	apiURL, admURL := serve(api), serve(adm)
	_, _, stranger := pair(t, 8)
	for serial := int64(1); serial <= 2; serial++ {
		if got, proto, err := get(apiURL, client); got != serial || proto != "HTTP/2.0" {
			t.Errorf("a client with a certificate: %d %s %v", got, proto, err)
		}
		if got, _, err := get(admURL); got != serial {
			t.Errorf("the admin address: %d %v", got, err)
		}
		for _, with := range [][]tls.Certificate{nil, {stranger}} {
			if _, _, err := get(apiURL, with...); err == nil {
				t.Errorf("a client with %d foreign certificates was answered", len(with))
			}
		}
		cert, key, _ := pair(t, 2)
		must.Succeed(t, i.use([][]byte{cert, key, clientCert}))
		if err := i.use([][]byte{cert, []byte("no key"), clientCert}); err == nil {
			t.Error("a file that is no key is used")
		}
		if err := i.use([][]byte{cert, key, []byte("no authority")}); err == nil {
			t.Error("a file that has no authority is used")
		}
	}
}

// TestWanted: OpenTelemetry starts where its environment variables say where to send.
func TestWanted(t *testing.T) {
	for _, c := range []struct {
		env             map[string]string
		traces, metrics bool
	}{
		{nil, false, false},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, true, true},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_METRICS_EXPORTER": "none"}, true, false},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, false, false},
		{map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, true, false},
		{map[string]string{"OTEL_METRICS_EXPORTER": "console"}, false, true},
		{map[string]string{"OTEL_SERVICE_NAME": "limits"}, false, false},
	} {
		for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_SDK_DISABLED"} {
			t.Setenv(name, c.env[name])
		}
		if traces, metrics := wanted("TRACES"), wanted("METRICS"); traces != c.traces || metrics != c.metrics {
			t.Errorf("%v: traces %v, metrics %v", c.env, traces, metrics)
		}
	}
}
