package deploy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/yaml"
)

const chartDir = "../chart"

// A values is one way to install the chart.
type values struct {
	name, yaml string
	// kinds are the objects in the order of their names: Kind of Deployment and so on.
	kinds string
}

const limits = `
policies: |
  policies:
    - {name: login, algorithm: token_bucket, limit: 5000000, period: 1m, burst: 10}
`

const domain = `
rateLimitConfig:
  api: |
    domain: api
    descriptors:
      - key: client
        rate_limit: {unit: minute, requests_per_unit: 60}
`

const base = "Deployment Job NetworkPolicy PodDisruptionBudget Service Service Service"

var installs = []values{
	{"defaults", ``, base},
	{"policies", limits, "ConfigMap " + base},
	{"autoscaling", `{autoscaling: {enabled: true}}`, strings.Replace(base, "Job", "HorizontalPodAutoscaler Job", 1)},
	{"owner apart", `{migrate: {secret: pglimit-owner, key: owner-url, role: app}}`, base},
	{"no callers known", `{noAuth: true, tokens: {secret: ""}}`, base},
	{"least", `{migrate: {enabled: false}, disruptionBudget: {enabled: false}, networkPolicy: {enabled: false}, fullnameOverride: x}`, "Deployment Service Service Service"},
	{"certificates of clients", `{tls: {secret: pglimit-tls, clientCA: true}, tokens: {secret: ""}}`, base},
	{"everything", limits + domain + `
image: {repository: registry.example.com/pglimit, tag: v9, digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
imagePullSecrets: [{name: registry}]
keySecret: {secret: pglimit-key, key: secret}
tls: {secret: pglimit-tls}
trustedProxies: [10.0.0.0/8, "fd00::/8"]
accessLog: none
extraArgs: [--timeout=2s, --max-connections=4096, --proxy-header=Client-Ip]
env: {LIMIT_RESPONSE_HEADERS_ENABLED: true}
drain: {delaySeconds: 1, timeoutSeconds: 2}
autoscaling: {enabled: true, minReplicas: 3, maxReplicas: 5, cpuPercent: 50}
service: {type: LoadBalancer, http: 80, grpc: 81, annotations: {a: b}}
serviceMonitor: {enabled: true, labels: {release: prometheus}, tlsConfig: {serverName: x, ca: {secret: {name: pglimit-tls, key: ca.crt}}}}
networkPolicy:
  egress: [{to: [{ipBlock: {cidr: 10.1.0.0/16}}], ports: [{port: 5432}]}]
migrate: {secret: pglimit-owner, key: owner-url}
serviceAccountName: limits
priorityClassName: high
podLabels: {team: a}
podAnnotations: {note: b}
nodeSelector: {disk: ssd}
tolerations: [{key: only, operator: Exists}]
affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: zone}}]}}
`, "ConfigMap ConfigMap Deployment HorizontalPodAutoscaler Job NetworkPolicy PodDisruptionBudget Service Service Service ServiceMonitor"},
	{"ratelimit", "mode: ratelimit\nserviceMonitor: {enabled: true}\ndrain: {delaySeconds: 1}" + domain, "ConfigMap " + base + " ServiceMonitor"},
	{"ratelimit with TLS", "mode: ratelimit\ntls: {secret: pglimit-tls, clientCA: true}\nkeySecret: {secret: pglimit-key}\nenv: {DECISION_TIMEOUT: 5s, LOG_LEVEL: info}" + domain, "ConfigMap " + base},
	{"ratelimit by xDS", "mode: ratelimit\nenv: {CONFIG_TYPE: GRPC_XDS_SOTW, CONFIG_GRPC_XDS_SERVER_URL: \"control:18000\"}", base},
}

// parse returns values as Helm reads them.
func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	v, err := loader.LoadValues(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// render returns the chart's files for values, as helm template does.
func render(t *testing.T, text string) (map[string]string, error) {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	v, err := util.ToRenderValues(c, parse(t, text), common.ReleaseOptions{Name: "limits", Namespace: "infra", Revision: 1, IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, v)
}

// A monitor has the fields of a ServiceMonitor that the chart uses.
type monitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port      string         `json:"port"`
			Path      string         `json:"path"`
			Interval  string         `json:"interval"`
			Scheme    string         `json:"scheme"`
			TLSConfig map[string]any `json:"tlsConfig"`
		} `json:"endpoints"`
	} `json:"spec"`
}

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, policyv1.AddToScheme, autoscalingv2.AddToScheme, networkingv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// decode returns the object of one document. An unknown or repeated field is an error.
func decode(document string) (metav1.Object, error) {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
		return nil, err
	}
	if kind.APIVersion == "monitoring.coreos.com/v1" && kind.Kind == "ServiceMonitor" {
		m := &monitor{}
		return m, yaml.UnmarshalStrict([]byte(document), m)
	}
	object, _, err := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true}).Decode([]byte(document), nil, nil)
	if err != nil {
		return nil, err
	}
	return object.(metav1.Object), nil
}

// objects are those of an install, by kind.
type objects struct {
	deployment *appsv1.Deployment
	job        *batchv1.Job
	services   []*corev1.Service
	configs    map[string]map[string]string
	budget     *policyv1.PodDisruptionBudget
	scaler     *autoscalingv2.HorizontalPodAutoscaler
	network    *networkingv1.NetworkPolicy
	monitor    *monitor
	list       []string // "Kind name"
}

// install renders the chart and decodes all of it.
func install(t *testing.T, v values) *objects {
	t.Helper()
	files, err := render(t, v.yaml)
	if err != nil {
		t.Fatal(err)
	}
	all := &objects{configs: map[string]map[string]string{}}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(file, ".yaml") {
			continue
		}
		for document := range strings.SplitSeq("\n"+files[file], "\n---") {
			if strings.TrimSpace(document) == "" {
				continue
			}
			object, err := decode(document)
			if err != nil {
				t.Fatalf("%s: %v\n%s", file, err, document)
			}
			kind := ""
			switch o := object.(type) {
			case *appsv1.Deployment:
				all.deployment, kind = o, o.Kind
			case *batchv1.Job:
				all.job, kind = o, o.Kind
			case *corev1.Service:
				all.services, kind = append(all.services, o), o.Kind
			case *corev1.ConfigMap:
				all.configs[o.Name], kind = o.Data, o.Kind
			case *policyv1.PodDisruptionBudget:
				all.budget, kind = o, o.Kind
			case *autoscalingv2.HorizontalPodAutoscaler:
				all.scaler, kind = o, o.Kind
			case *networkingv1.NetworkPolicy:
				all.network, kind = o, o.Kind
			case *monitor:
				all.monitor, kind = o, o.Kind
			default:
				t.Fatalf("%s has a %T, which no test looks at", file, object)
			}
			if object.GetLabels()["app.kubernetes.io/instance"] != "limits" || object.GetName() == "" || len(object.GetName()) > 63 {
				t.Errorf("%s %q has labels %v", kind, object.GetName(), object.GetLabels())
			}
			all.list = append(all.list, kind+" "+object.GetName())
		}
	}
	slices.Sort(all.list)
	return all
}

// TestChartLints holds that helm lint has nothing to say, for any values of the table.
func TestChartLints(t *testing.T) {
	for _, v := range installs {
		t.Run(v.name, func(t *testing.T) {
			for _, m := range lint.RunAll(chartDir, parse(t, v.yaml), "infra").Messages {
				t.Error(m)
			}
		})
	}
}

// TestChartObjects holds that each manifest is of its type, that the objects of an install fit
// each other, and that they are those that the values ask for.
func TestChartObjects(t *testing.T) {
	for _, v := range installs {
		t.Run(v.name, func(t *testing.T) {
			o := install(t, v)
			t.Log(strings.Join(o.list, ", "))
			var kinds []string
			for _, name := range o.list {
				kinds = append(kinds, strings.Fields(name)[0])
			}
			if got := strings.Join(kinds, " "); got != v.kinds {
				t.Errorf("has %s, not %s", got, v.kinds)
			}
			o.selectors(t)
			o.ports(t)
			o.rollout(t)
			o.pod(t, o.deployment.Spec.Template)
			if o.job != nil {
				o.hook(t)
				o.pod(t, o.job.Spec.Template)
			}
		})
	}
}

// within reports whether labels have all of want, which is not empty.
func within(want, labels map[string]string) bool {
	for name, value := range want {
		if labels[name] != value {
			return false
		}
	}
	return len(want) > 0
}

// selectors: each selects the server's pods, and none the job's.
func (o *objects) selectors(t *testing.T) {
	t.Helper()
	all := map[string]map[string]string{"Deployment": o.deployment.Spec.Selector.MatchLabels}
	for _, s := range o.services {
		all["Service "+s.Name] = s.Spec.Selector
	}
	for i, c := range o.deployment.Spec.Template.Spec.TopologySpreadConstraints {
		all[fmt.Sprint("topologySpreadConstraints ", i)] = c.LabelSelector.MatchLabels
	}
	if o.budget != nil {
		all["PodDisruptionBudget"] = o.budget.Spec.Selector.MatchLabels
	}
	if o.network != nil {
		all["NetworkPolicy"] = o.network.Spec.PodSelector.MatchLabels
	}
	for name, selector := range all {
		if !within(selector, o.deployment.Spec.Template.Labels) {
			t.Errorf("%s selects %v, and the pods have %v", name, selector, o.deployment.Spec.Template.Labels)
		}
		if o.job != nil && within(selector, o.job.Spec.Template.Labels) {
			t.Errorf("%s selects the pods of the job too", name)
		}
	}
	if s := o.scaler; s != nil && (s.Spec.ScaleTargetRef.Kind != "Deployment" || s.Spec.ScaleTargetRef.Name != o.deployment.Name || s.Spec.ScaleTargetRef.APIVersion != o.deployment.APIVersion) {
		t.Errorf("the scaler's target is %v", s.Spec.ScaleTargetRef)
	}
	if (o.scaler == nil) != (o.deployment.Spec.Replicas != nil) {
		t.Error("either the scaler or the Deployment has to have the number of pods")
	}
}

// port returns the number of the pods' port called name.
func (o *objects) port(name string) (number int32, ok bool) {
	for _, c := range o.deployment.Spec.Template.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == name {
				return p.ContainerPort, true
			}
		}
	}
	return 0, false
}

// ports: each name that a Service, probe, monitor or NetworkPolicy has is that of a port.
func (o *objects) ports(t *testing.T) {
	t.Helper()
	used := map[string]string{}
	for _, s := range o.services {
		for _, p := range s.Spec.Ports {
			used["Service "+s.Name+" "+p.Name] = p.TargetPort.String()
		}
		if n, _ := o.port("grpc"); s.Spec.ClusterIP == corev1.ClusterIPNone && s.Spec.Ports[0].Port != n {
			t.Errorf("Service %s: without an address it must have the port of the pods", s.Name)
		}
	}
	c := o.deployment.Spec.Template.Spec.Containers[0]
	for name, p := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
		switch {
		case p == nil:
			t.Errorf("there is no %s probe", name)
		case p.HTTPGet != nil:
			used[name] = p.HTTPGet.Port.String()
		case p.TCPSocket != nil:
			used[name] = p.TCPSocket.Port.String()
		}
	}
	if o.network != nil {
		for i, in := range o.network.Spec.Ingress {
			if len(in.From) == 0 {
				t.Errorf("rule %d of the NetworkPolicy lets all in", i)
			}
			for j, p := range in.Ports {
				used[fmt.Sprintf("NetworkPolicy %d %d", i, j)] = p.Port.String()
			}
		}
	}
	if m := o.monitor; m != nil {
		seen := 0
		for _, s := range o.services {
			if within(m.Spec.Selector.MatchLabels, s.Labels) {
				seen++
				for _, p := range s.Spec.Ports {
					if p.Name == m.Spec.Endpoints[0].Port {
						seen++
					}
				}
			}
		}
		if seen != 2 {
			t.Errorf("the monitor does not select one Service that has its port %s", m.Spec.Endpoints[0].Port)
		}
	}
	for what, name := range used {
		if _, ok := o.port(name); !ok {
			t.Errorf("%s uses port %q, which the pods do not have", what, name)
		}
	}
}

// rollout: a pod ends when another is ready, and has more time for that than it takes.
func (o *objects) rollout(t *testing.T) {
	t.Helper()
	spec := o.deployment.Spec
	if r := spec.Strategy.RollingUpdate; r == nil || r.MaxUnavailable.String() != "0" || r.MaxSurge.String() == "0" {
		t.Errorf("the strategy is %v", spec.Strategy)
	}
	var delay, timeout int64
	c := spec.Template.Spec.Containers[0]
	if c.Args[0] == "serve" {
		for _, arg := range c.Args {
			_, _ = fmt.Sscanf(arg, "--drain-delay=%ds", &delay)
			_, _ = fmt.Sscanf(arg, "--drain-timeout=%ds", &timeout)
		}
	} else if c.Lifecycle != nil {
		delay, timeout = c.Lifecycle.PreStop.Sleep.Seconds, 10
	}
	if grace := *spec.Template.Spec.TerminationGracePeriodSeconds; delay < 1 || timeout < 1 || grace < delay+timeout+5 {
		t.Errorf("the pod has %d s for a delay of %d s and a drain of %d s", grace, delay, timeout)
	}
}

// hook: the job runs before the objects of an install are there, so it can mount only Secrets.
func (o *objects) hook(t *testing.T) {
	t.Helper()
	if o.job.Annotations["helm.sh/hook"] != "pre-install,pre-upgrade" || !strings.Contains(o.job.Annotations["helm.sh/hook-delete-policy"], "before-hook-creation") {
		t.Errorf("the job's hook is %v", o.job.Annotations)
	}
	for _, v := range o.job.Spec.Template.Spec.Volumes {
		if v.Secret == nil {
			t.Errorf("the job mounts %s, which is no Secret", v.Name)
		}
	}
}

// pod: it has no rights, and its secrets are files, never in a variable or an argument.
func (o *objects) pod(t *testing.T, p corev1.PodTemplateSpec) {
	t.Helper()
	s := p.Spec.SecurityContext
	if !*s.RunAsNonRoot || *s.RunAsUser != 65532 || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || *p.Spec.AutomountServiceAccountToken {
		t.Errorf("the pod has rights: %v", s)
	}
	mode := map[string]int32{}
	for _, v := range p.Spec.Volumes {
		switch {
		case v.Secret != nil:
			if mode[v.Name] = *v.Secret.DefaultMode; *v.Secret.DefaultMode != 0o440 {
				t.Errorf("volume %s has mode %o", v.Name, *v.Secret.DefaultMode)
			}
		case v.ConfigMap != nil:
			if mode[v.Name] = 1; o.configs[v.ConfigMap.Name] == nil {
				t.Errorf("volume %s is of ConfigMap %s, which is not there", v.Name, v.ConfigMap.Name)
			}
		default:
			t.Errorf("volume %s is neither a Secret nor a ConfigMap", v.Name)
		}
	}
	for _, c := range append(slices.Clone(p.Spec.InitContainers), p.Spec.Containers...) {
		x := c.SecurityContext
		if *x.AllowPrivilegeEscalation || !*x.ReadOnlyRootFilesystem || len(x.Capabilities.Drop) != 1 || x.Capabilities.Drop[0] != "ALL" || len(x.Capabilities.Add) > 0 {
			t.Errorf("container %s has rights: %v", c.Name, x)
		}
		if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
			t.Errorf("container %s has no resources", c.Name)
		}
		if len(c.EnvFrom) > 0 {
			t.Errorf("container %s takes variables from elsewhere", c.Name)
		}
		var mounts []string
		for _, m := range c.VolumeMounts {
			if mode[m.Name] == 0 || !m.ReadOnly {
				t.Errorf("container %s mounts %s, which is no volume or is writable", c.Name, m.Name)
			}
			mounts = append(mounts, m.MountPath+"/")
		}
		paths := slices.Clone(c.Args)
		names := map[string]bool{}
		for _, e := range c.Env {
			if names[e.Name] || e.ValueFrom != nil || e.Name == "DATABASE_URL" || e.Name == "PGLIMIT_KEY_SECRET" || strings.Contains(e.Value, "postgres") {
				t.Errorf("container %s has variable %s twice, from elsewhere, or with a secret", c.Name, e.Name)
			}
			names[e.Name] = true
			if e.Name != "RUNTIME_ROOT" {
				paths = append(paths, e.Value)
			}
		}
		for _, text := range paths {
			if _, path, ok := strings.Cut(text, "/etc/pglimit/"); ok && !slices.ContainsFunc(mounts, func(m string) bool { return strings.HasPrefix("/etc/pglimit/"+path+"/", m) }) {
				t.Errorf("container %s names %s, where nothing is mounted", c.Name, text)
			}
		}
	}
}

// TestChartRefuses holds that values which cannot work are refused before anything is installed,
// and that the error names the value.
func TestChartRefuses(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{`{replica: 3}`, "replica"},
		{`{replicas: "3"}`, "/replicas"},
		{`{mode: proxy}`, "/mode"},
		{`{database: {secret: ""}}`, "/database/secret"},
		{`{database: {url: "postgres://app:secret@db/limits"}}`, "url"},
		{`{env: {DATABASE_URL: "postgres://app:secret@db/limits"}}`, "env.DATABASE_URL"},
		{`{env: {PGPASSWORD: secret}}`, "env.PGPASSWORD"},
		{`{extraArgs: ["--database-url=postgres://db"]}`, "--database-url"},
		{`{extraArgs: ["--http=:80"]}`, "extraArgs has --http=:80"},
		{`{extraArgs: [serve]}`, "/extraArgs/0"},
		{`{env: {path: x}}`, "/env"},
		{`{migrate: {role: --functions}}`, "/migrate/role"},
		{`{image: {digest: latest}}`, "/image/digest"},
		{`{drain: {delaySeconds: 0}}`, "/drain/delaySeconds"},
		{`{networkPolicy: {clients: []}}`, "/networkPolicy/clients"},
		{`{autoscaling: {enabled: true, minReplicas: 9, maxReplicas: 8}}`, "autoscaling.minReplicas"},
		{`{autoscaling: {enabled: true}, resources: {requests: {cpu: null}}}`, "resources.requests.cpu"},
		{`{noAuth: true}`, "tokens.secret"},
		{`{tokens: {secret: ""}}`, "noAuth"},
		{`{tls: {clientCA: true}}`, "tls.secret"},
		{`{tls: {secret: x}, serviceMonitor: {enabled: true}}`, "serviceMonitor.tlsConfig"},
		{`{mode: ratelimit}`, "rateLimitConfig"},
		{`{mode: ratelimit, rateLimitConfig: {a: "domain: a"}, policies: x}`, "policies"},
		{`{mode: ratelimit, rateLimitConfig: {a: "domain: a"}, extraArgs: [--timeout=2s]}`, "extraArgs"},
		{`{rateLimitConfig: {../a: "domain: a"}}`, "rateLimitConfig"},
	} {
		if _, err := render(t, c.yaml); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error %v does not name %s", c.yaml, err, c.want)
		} else {
			t.Logf("%s: %v", c.yaml, err)
		}
	}
}
