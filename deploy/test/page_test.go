package deploy

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	manager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	istio "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// An envoyGateway has the fields of Envoy Gateway's configuration that the page uses.
type envoyGateway struct {
	metav1.TypeMeta `json:",inline"`
	Gateway         struct {
		ControllerName string `json:"controllerName"`
	} `json:"gateway"`
	Provider struct {
		Type       string `json:"type"`
		Kubernetes struct {
			RateLimitDeployment struct {
				Container struct {
					Image        string               `json:"image"`
					Env          []corev1.EnvVar      `json:"env"`
					VolumeMounts []corev1.VolumeMount `json:"volumeMounts"`
				} `json:"container"`
				Pod struct {
					Volumes []corev1.Volume `json:"volumes"`
				} `json:"pod"`
			} `json:"rateLimitDeployment"`
		} `json:"kubernetes"`
	} `json:"provider"`
	RateLimit struct {
		Backend struct {
			Type  string `json:"type"`
			Redis struct {
				URL string `json:"url"`
			} `json:"redis"`
		} `json:"backend"`
		Timeout metav1.Duration `json:"timeout"`
	} `json:"rateLimit"`
}

type service struct {
	Name string `json:"name"`
	Port int32  `json:"port"`
}

// An extensionService, a contour and an httpProxy have the fields of Contour's that the page uses.
type extensionService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Protocol      string    `json:"protocol"`
		Services      []service `json:"services"`
		TimeoutPolicy struct {
			Response string `json:"response"`
		} `json:"timeoutPolicy"`
	} `json:"spec"`
}

type contour struct {
	RateLimitService struct {
		ExtensionService string `json:"extensionService"`
		Domain           string `json:"domain"`
		FailOpen         bool   `json:"failOpen"`
	} `json:"rateLimitService"`
}

type httpProxy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		VirtualHost struct {
			FQDN            string `json:"fqdn"`
			RateLimitPolicy struct {
				Global struct {
					Descriptors []struct {
						Entries []struct {
							RemoteAddress *struct{} `json:"remoteAddress"`
						} `json:"entries"`
					} `json:"descriptors"`
				} `json:"global"`
			} `json:"rateLimitPolicy"`
		} `json:"virtualhost"`
		Routes []struct {
			Services []service `json:"services"`
		} `json:"routes"`
	} `json:"spec"`
}

// strict decodes YAML into a type. An unknown or repeated field is an error.
func strict[T any](t *testing.T, text string) *T {
	t.Helper()
	into := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
	return into
}

// message decodes YAML into a message of protobuf. An unknown field is an error.
func message(t *testing.T, value any, into proto.Message) {
	t.Helper()
	text, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = yaml.YAMLToJSONStrict(text); err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(text, into); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestPage holds that each manifest of docs/kubernetes.md has fields of its type only, and that the
// gateways of the page find the chart's Service and the domain of its configuration.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		text := block[1]
		var head metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(text), &head); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		kinds = append(kinds, head.Kind)
		switch head.Kind {
		case "EnvoyGateway":
			d := strict[envoyGateway](t, text).Provider.Kubernetes.RateLimitDeployment
			if e, m := d.Container.Env[0], d.Container.VolumeMounts[0]; e.Name != "DATABASE_URL_FILE" || e.Value != m.MountPath+"/url" || d.Pod.Volumes[0].Name != m.Name {
				t.Errorf("%s is not where the Secret is mounted", e.Value)
			}
		case "EnvoyFilter":
			envoyFilter(t, text)
		case "ExtensionService":
			finds(t, strict[extensionService](t, text).Spec.Services[0])
		case "HTTPProxy":
			strict[httpProxy](t, text)
		default:
			if strings.HasPrefix(text, "rateLimitService:") {
				if c := strict[contour](t, text); c.RateLimitService.Domain != "edge" || c.RateLimitService.ExtensionService != "infra/limits" {
					t.Errorf("the names differ from those of the page: %v", c)
				}
				break
			}
			o := install(t, values{yaml: text})
			o.selectors(t)
			o.ports(t)
			o.pod(t, o.deployment.Spec.Template)
		}
	}
	if want := []string{"", "", "EnvoyGateway", "EnvoyFilter", "ExtensionService", "", "HTTPProxy"}; !slices.Equal(kinds, want) {
		t.Errorf("the page has %q, not %q", kinds, want)
	}
}

// finds: a Service of the chart has that name and port.
func finds(t *testing.T, s service) {
	t.Helper()
	for _, has := range install(t, installs[0]).services {
		if has.Name == s.Name && has.Namespace == "" && has.Spec.Ports[len(has.Spec.Ports)-1].Port == s.Port {
			return
		}
	}
	t.Errorf("the chart has no Service %s with port %d", s.Name, s.Port)
}

// envoyFilter: Istio and Envoy have all the fields.
func envoyFilter(t *testing.T, text string) {
	t.Helper()
	f := strict[struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              map[string]any `json:"spec"`
	}](t, text)
	spec := &istio.EnvoyFilter{}
	message(t, f.Spec, spec)
	message(t, spec.ConfigPatches[0].Patch.Value.AsMap(), &manager.HttpFilter{})
	message(t, spec.ConfigPatches[1].Patch.Value.AsMap(), &route.VirtualHost{})
	if !strings.Contains(text, "domain: edge\n") || !strings.Contains(text, "outbound|8081||limits-pglimit.infra.svc.cluster.local\n") {
		t.Error("the filter has another domain or cluster than the page")
	}
	finds(t, service{"limits-pglimit", 8081})
}
