package deploy

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// command is the path of the built command.
var command string

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run builds the command in the workspace, which this module is not in.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pglimit-deploy")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	command = filepath.Join(dir, "pglimit")
	build := exec.Command("go", "build", "-o", command, ".")
	build.Dir = "../../cmd/pglimit"
	build.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "GOWORK=") })
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build of cmd/pglimit: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// secrets has what the Secrets of the table have, by name and key. The database's name is in the
// environment, as bin/withpg sets it.
func secrets(t *testing.T) (all map[string]map[string]string, token string) {
	t.Helper()
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		t.Fatal("DATABASE_URL is not set: run the tests by make test, or bin/withpg")
	}
	out, err := exec.Command(command, "serve", "token", "web", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var made struct{ Token, Line string }
	if err := json.Unmarshal(out, &made); err != nil || made.Token == "" || made.Line == "" {
		t.Fatalf("serve token printed %s", out)
	}
	cert, key := certificate(t)
	return map[string]map[string]string{
		"pglimit-database": {"url": url},
		"pglimit-owner":    {"owner-url": url},
		"pglimit-key":      {"secret": "a secret that no environment may have"},
		"pglimit-tokens":   {"tokens": made.Line},
		"pglimit-tls":      {"tls.crt": cert, "tls.key": key, "ca.crt": cert},
	}, made.Token
}

// certificate returns one for localhost that is its own authority, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"localhost"}, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs}))
}

// container returns the command as the container starts it, with its volumes below a directory.
func (o *objects) container(t *testing.T, pod corev1.PodSpec, c corev1.Container, secrets map[string]map[string]string) *exec.Cmd {
	t.Helper()
	root := t.TempDir()
	for _, m := range c.VolumeMounts {
		v := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })]
		data, items := map[string]string(nil), []corev1.KeyToPath(nil)
		if v.Secret != nil {
			data, items = secrets[v.Secret.SecretName], v.Secret.Items
		} else {
			data = o.configs[v.ConfigMap.Name]
		}
		if items == nil {
			for key := range data {
				items = append(items, corev1.KeyToPath{Key: key, Path: key})
			}
		}
		dir := filepath.Join(root, m.MountPath)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			text, ok := data[item.Key]
			if !ok {
				t.Fatalf("volume %s needs key %s", v.Name, item.Key)
			}
			if err := os.WriteFile(filepath.Join(dir, item.Path), []byte(text), 0o440); err != nil {
				t.Fatal(err)
			}
		}
	}
	here := func(text string) string { return strings.ReplaceAll(text, "/etc/pglimit", root+"/etc/pglimit") }
	cmd := exec.Command(command)
	for _, arg := range c.Args {
		cmd.Args = append(cmd.Args, here(arg))
	}
	cmd.Env = []string{"HOME=" + root}
	for _, e := range c.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+here(e.Value))
	}
	return cmd
}

// A pod is a server that runs as the Deployment's container does.
type pod struct {
	cmd    *exec.Cmd
	ports  map[string]string // addresses by the name of a port
	stderr bytes.Buffer
	ended  chan error
}

// start starts the Deployment's container, on free ports of this machine.
func (o *objects) start(t *testing.T, secrets map[string]map[string]string) *pod {
	t.Helper()
	spec := o.deployment.Spec.Template.Spec
	p := &pod{ports: map[string]string{}, ended: make(chan error, 1)}
	p.cmd = o.container(t, spec, spec.Containers[0], secrets)
	free := func(text, name string) string {
		number, _ := o.port(name)
		before, ok := strings.CutSuffix(text, fmt.Sprintf("=:%d", number))
		if !ok {
			t.Fatalf("%s is not port %s of the container, %d", text, name, number)
		}
		return before + "=localhost:0"
	}
	var names []string
	serve := p.cmd.Args[1] == "serve"
	if serve {
		for i, arg := range p.cmd.Args {
			for _, name := range []string{"http", "grpc", "admin"} {
				if strings.HasPrefix(arg, "--"+name+"=") {
					p.cmd.Args[i] = free(arg, name)
				}
			}
		}
		p.cmd.Args = append(p.cmd.Args, "--drain-delay=1ms") // no cluster has to learn of the end
	} else {
		names = []string{"grpc", "http", "debug", "admin"} // as they are logged
		for i, e := range p.cmd.Env {
			if strings.HasPrefix(e, "PROMETHEUS_ADDR=") {
				p.cmd.Env[i] = free(e, "admin")
			}
		}
		p.cmd.Env = append(p.cmd.Env, "PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0", "LOG_LEVEL=info")
	}
	out, in := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = in, &p.stderr
	if !serve {
		p.cmd.Stdout, p.cmd.Stderr = nil, io.MultiWriter(&p.stderr, in)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.ended <- p.cmd.Wait()
		_ = in.Close()
	}()
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	late := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	for printed := json.NewDecoder(out); len(p.ports) == 0 || len(names) > 0; {
		var line map[string]any
		if printed.Decode(&line) != nil {
			break
		}
		if address, ok := line["address"].(string); ok && !serve {
			p.ports[names[0]], names = address, names[1:]
		} else if serve {
			for name, url := range line {
				address := fmt.Sprint(url)
				p.ports[name] = address[strings.LastIndex(address, "/")+1:]
			}
		}
	}
	if len(p.ports) < 3 || len(names) > 0 {
		t.Fatalf("the container ended: %v\n%s", <-p.ended, p.stderr.String())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return p
}

// client accepts the certificate of the pod, and shows the same.
func client(t *testing.T, secrets map[string]map[string]string) *http.Client {
	t.Helper()
	own, err := tls.X509KeyPair([]byte(secrets["pglimit-tls"]["tls.crt"]), []byte(secrets["pglimit-tls"]["tls.key"]))
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{own}}}}
}

// probe does what the kubelet does. It shows no certificate.
func (p *pod) probe(h corev1.ProbeHandler) error {
	if h.TCPSocket != nil {
		conn, err := net.Dial("tcp", p.ports[h.TCPSocket.Port.String()])
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	scheme := "http"
	if h.HTTPGet.Scheme != "" {
		scheme = strings.ToLower(string(h.HTTPGet.Scheme))
	}
	c := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := c.Get(scheme + "://" + p.ports[h.HTTPGet.Port.String()] + h.HTTPGet.Path)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// TestChartRuns holds that the command accepts what the chart's containers start it with: the job
// migrates; the server becomes ready by its probes, decides by the policies of its ConfigMaps, has
// no secret in its environment or arguments, and ends after SIGTERM.
func TestChartRuns(t *testing.T) {
	secrets, token := secrets(t)
	for _, v := range installs {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			o := install(t, v)
			if o.job != nil {
				o.migrate(t, secrets)
			}
			if v.name == "ratelimit by xDS" {
				return // it has no server to get its limits from
			}
			p := o.start(t, secrets)
			c := o.deployment.Spec.Template.Spec.Containers[0]
			deadline := time.Now().Add(time.Minute)
			for p.probe(c.ReadinessProbe.ProbeHandler) != nil && time.Now().Before(deadline) {
				time.Sleep(20 * time.Millisecond)
			}
			for name, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
				if err := p.probe(probe.ProbeHandler); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			p.dump(t, secrets)
			p.decides(t, o, client(t, secrets), token)
			if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := <-p.ended; err != nil {
				t.Errorf("the end: %v\n%s", err, p.stderr.String())
			}
		})
	}
}

// migrate runs the job. Its role is not there, so that grants says so.
func (o *objects) migrate(t *testing.T, secrets map[string]map[string]string) {
	t.Helper()
	spec := o.job.Spec.Template.Spec
	for _, c := range append(slices.Clone(spec.InitContainers), spec.Containers...) {
		out, err := o.container(t, spec, c, secrets).CombinedOutput()
		if c.Name == "grants" {
			if err == nil || !strings.Contains(string(out), `role "app"`) {
				t.Errorf("grants: %v\n%s", err, out)
			}
		} else if err != nil {
			t.Errorf("%s: %v\n%s", c.Name, err, out)
		}
	}
}

// dump: what /proc shows of the process has none of the secrets.
func (p *pod) dump(t *testing.T, secrets map[string]map[string]string) {
	t.Helper()
	for _, file := range []string{"environ", "cmdline"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, file))
		if err != nil || len(data) == 0 {
			t.Fatalf("%s: %v", file, err)
		}
		for name, s := range secrets {
			for key, value := range s {
				if bytes.Contains(data, []byte(value)) {
					t.Errorf("%s shows %s of Secret %s", file, key, name)
				}
			}
		}
	}
}

// decides: the server answers by what the ConfigMaps have, and shows it in its metrics.
func (p *pod) decides(t *testing.T, o *objects, c *http.Client, token string) {
	t.Helper()
	plain, metric := "http://", "pglimit_"
	if slices.ContainsFunc(p.cmd.Args, func(a string) bool { return strings.HasPrefix(a, "--tls-cert=") }) {
		plain = "https://"
	}
	post := func(path, body, want string) {
		t.Helper()
		r, err := http.NewRequest(http.MethodPost, plain+p.ports["http"]+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+token)
		response, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if answer, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(answer), want) {
			t.Errorf("%s: %s %s %v", path, response.Status, answer, err)
		}
	}
	if p.cmd.Args[1] == "ratelimit" {
		metric = "ratelimit_"
		post("/json", `{"domain":"api","descriptors":[{"entries":[{"key":"client","value":"a"}]}]}`, `"requestsPerUnit":60`)
	} else if o.configs["limits-pglimit-policies"] != nil {
		post("/v1/allow", `{"policy":"login","key":"alice"}`, `"limit":5000000`)
	}
	path := "/metrics"
	if o.monitor != nil {
		path = o.monitor.Spec.Endpoints[0].Path
		if s := o.monitor.Spec.Endpoints[0].Scheme; (s == "https") != (plain == "https://") {
			t.Errorf("the monitor's scheme is %q, and the server's %s", s, plain)
		}
	}
	response, err := c.Get(plain + p.ports["admin"] + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(text), metric) {
		t.Errorf("metrics: %s %.500s %v", response.Status, text, err)
	}
}
