package ratelimit

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Env is what a program under the name ratelimit reads from the environment: the variables of
// envoyproxy/ratelimit that have a meaning without Redis, COUNT_EACH for Options.CountEach, and
// DECISION_TIMEOUT.
type Env struct {
	Host      string `env:"HOST" default:"0.0.0.0"`
	Port      uint16 `env:"PORT" default:"8080"`
	DebugHost string `env:"DEBUG_HOST" default:"0.0.0.0"`
	DebugPort uint16 `env:"DEBUG_PORT" default:"6070"`

	GRPCSocket   string        `env:"GRPC_UDS"`
	GRPCHost     string        `env:"GRPC_HOST" default:"0.0.0.0"`
	GRPCPort     uint16        `env:"GRPC_PORT" default:"8081"`
	MaxAge       time.Duration `env:"GRPC_MAX_CONNECTION_AGE" default:"24h"`
	MaxAgeGrace  time.Duration `env:"GRPC_MAX_CONNECTION_AGE_GRACE" default:"1h"`
	TLS          bool          `env:"GRPC_SERVER_USE_TLS" default:"false"`
	Cert         string        `env:"GRPC_SERVER_TLS_CERT"`
	Key          string        `env:"GRPC_SERVER_TLS_KEY"`
	ClientCA     string        `env:"GRPC_CLIENT_TLS_CACERT"`
	ClientSAN    string        `env:"GRPC_CLIENT_TLS_SAN"`
	LogLevel     string        `env:"LOG_LEVEL" default:"WARN"`
	LogFormat    string        `env:"LOG_FORMAT" default:"text"`
	ConfigType   string        `env:"CONFIG_TYPE" default:"FILE"`
	ForceStart   bool          `env:"FORCE_START_WITHOUT_INITIAL_CONFIG" default:"false"`
	NeedConfig   bool          `env:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" default:"false"`
	MergeDomains bool          `env:"MERGE_DOMAIN_CONFIG" default:"false"`

	Root           string `env:"RUNTIME_ROOT" default:"/srv/runtime_data/current"`
	Subdirectory   string `env:"RUNTIME_SUBDIRECTORY"`
	AppDirectory   string `env:"RUNTIME_APPDIRECTORY" default:"config"`
	IgnoreDotFiles bool   `env:"RUNTIME_IGNOREDOTFILES" default:"false"`
	WatchRoot      bool   `env:"RUNTIME_WATCH_ROOT" default:"true"`

	NodeID      string        `env:"CONFIG_GRPC_XDS_NODE_ID" default:"default"`
	NodeData    string        `env:"CONFIG_GRPC_XDS_NODE_METADATA"`
	XDSURL      string        `env:"CONFIG_GRPC_XDS_SERVER_URL" default:"localhost:18000"`
	XDSHeaders  string        `env:"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"`
	XDSTLS      bool          `env:"CONFIG_GRPC_XDS_SERVER_USE_TLS" default:"false"`
	XDSCert     string        `env:"CONFIG_GRPC_XDS_CLIENT_TLS_CERT"`
	XDSKey      string        `env:"CONFIG_GRPC_XDS_CLIENT_TLS_KEY"`
	XDSCA       string        `env:"CONFIG_GRPC_XDS_SERVER_TLS_CACERT"`
	XDSSAN      string        `env:"CONFIG_GRPC_XDS_SERVER_TLS_SAN"`
	FirstWait   time.Duration `env:"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL" default:"10s"`
	LongestWait time.Duration `env:"XDS_CLIENT_BACKOFF_MAX_INTERVAL" default:"60s"`
	MaxMessage  uint32        `env:"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES" default:"0"`

	// Timeout is limiter.Config's.
	Timeout time.Duration `env:"DECISION_TIMEOUT" default:"1s"`

	Prometheus     bool   `env:"USE_PROMETHEUS" default:"false"`
	PrometheusAddr string `env:"PROMETHEUS_ADDR" default:":9090"`
	PrometheusPath string `env:"PROMETHEUS_PATH" default:"/metrics"`

	NearLimit       float32 `env:"NEAR_LIMIT_RATIO" default:"0.8"`
	Headers         bool    `env:"LIMIT_RESPONSE_HEADERS_ENABLED" default:"false"`
	LimitHeader     string  `env:"LIMIT_LIMIT_HEADER" default:"RateLimit-Limit"`
	RemainingHeader string  `env:"LIMIT_REMAINING_HEADER" default:"RateLimit-Remaining"`
	ResetHeader     string  `env:"LIMIT_RESET_HEADER" default:"RateLimit-Reset"`
	Shadow          bool    `env:"SHADOW_MODE" default:"false"`
	Quota           bool    `env:"QUOTA_MODE" default:"false"`
	Metadata        bool    `env:"RESPONSE_DYNAMIC_METADATA" default:"false"`
	CountEach       bool    `env:"COUNT_EACH" default:"false"`
}

// Unused are variables of envoyproxy/ratelimit that select what a Server does not do. Those of
// its backends have no meaning, and are not among them.
var Unused = []string{"USE_STATSD", "USE_DOG_STATSD", "TRACING_ENABLED", "PROMETHEUS_MAPPER_YAML", "CACHE_KEY_PREFIX"}

// ReadEnv reads the environment by a function such as os.Getenv. The error has a line for each
// variable that is not valid. An empty one has its default.
func ReadEnv(get func(string) string) (e Env, err error) {
	var faults []error
	v := reflect.ValueOf(&e).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		name, text := tag.Get("env"), get(tag.Get("env"))
		if text == "" {
			text = tag.Get("default")
		}
		var err error
		want := ""
		switch field := v.Field(i).Addr().Interface().(type) {
		case *string:
			*field = text
		case *bool:
			*field, err = strconv.ParseBool(text)
			want = "true or false"
		case *time.Duration:
			if *field, err = time.ParseDuration(text); err == nil && *field <= 0 {
				err = errors.New("not positive")
			}
			want = "a positive duration such as 30s"
		case *float32:
			var n float64
			if n, err = strconv.ParseFloat(text, 32); err == nil && !(n > 0 && n <= 1) {
				err = errors.New("out of range")
			}
			*field, want = float32(n), "above 0, and at most 1"
		default:
			var n uint64
			n, err = strconv.ParseUint(text, 10, v.Field(i).Type().Bits())
			v.Field(i).SetUint(n)
			want = "a whole number of at most " + strconv.FormatUint(1<<v.Field(i).Type().Bits()-1, 10)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s is %.80q: must be %s", name, text, want))
		}
	}
	return e, errors.Join(append(faults, e.check()...)...)
}

// check returns the faults of variables that do not go together.
func (e *Env) check() (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if e.ConfigType != "FILE" && e.ConfigType != "GRPC_XDS_SOTW" {
		fault("CONFIG_TYPE is %.80q: must be FILE or GRPC_XDS_SOTW", e.ConfigType)
	}
	if e.TLS && (e.Cert == "" || e.Key == "") {
		fault("GRPC_SERVER_USE_TLS needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY")
	}
	if !e.TLS && e.ClientCA != "" {
		fault("GRPC_CLIENT_TLS_CACERT needs GRPC_SERVER_USE_TLS: without it every client is let in")
	}
	if e.ClientSAN != "" && e.ClientCA == "" {
		fault("GRPC_CLIENT_TLS_SAN needs GRPC_CLIENT_TLS_CACERT: without it clients have no certificate")
	}
	if (e.XDSCert == "") != (e.XDSKey == "") {
		fault("CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY need each other")
	}
	for name, text := range map[string]string{"CONFIG_GRPC_XDS_NODE_METADATA": e.NodeData, "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": e.XDSHeaders} {
		if _, ok := pairs(text); !ok {
			fault("%s is %.80q: must be name=value,name=value", name, text)
		}
	}
	return faults
}

// pairs reads name=value or name:value, separated by commas.
func pairs(text string) (all map[string]string, ok bool) {
	all, ok = map[string]string{}, true
	for entry := range strings.SplitSeq(text, ",") {
		if i := strings.IndexAny(entry, "=:"); i > 0 {
			all[strings.TrimSpace(entry[:i])] = strings.TrimSpace(entry[i+1:])
		} else if entry != "" {
			ok = false
		}
	}
	return all, ok
}
