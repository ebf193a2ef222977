package playground

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

// described is a policy in those forms, or its error.
type described struct {
	Algorithm limiter.Algorithm `json:"algorithm"`
	Go        string            `json:"go,omitempty"`
	Command   string            `json:"command,omitempty"`
	Curl      string            `json:"curl,omitempty"`
	Error     string            `json:"error,omitempty"`
	Field     string            `json:"field,omitempty"`
}

// describeHandler answers POST /api/describe. Command lines begin with command.
func describeHandler(command []string) http.Handler {
	return api.Answer(func(w http.ResponseWriter, r *http.Request) (any, error) {
		var in struct {
			Key      string            `json:"key"`
			Policies []json.RawMessage `json:"policies"`
			Costs    []float64         `json:"costs"` // one for each policy; empty: 1 each
		}
		if err := api.Read(w, r, &in); err != nil {
			return nil, err
		}
		if err := parseKey(in.Key); err != nil {
			return nil, err
		}
		if most := len(limiter.Algorithms()); len(in.Policies) < 1 || len(in.Policies) > most {
			return nil, api.BadField("policies", "are %d: must be from 1 to %d", len(in.Policies), most)
		}
		costs, err := parseCosts(in.Costs, len(in.Policies))
		if err != nil {
			return nil, err
		}
		list := make([]described, len(in.Policies))
		for i, text := range in.Policies {
			request, err := parseRequest(text, in.Key, costs[i])
			var bad *api.Problem
			if errors.As(err, &bad) {
				list[i] = described{Algorithm: bad.Algorithm, Error: bad.Message, Field: bad.Field}
			} else if list[i], err = describe(request, command, r.Host); err != nil {
				return nil, err
			}
		}
		return map[string][]described{"policies": list}, nil
	})
}

// describe describes a request. host is the playground's address for curl.
func describe(request limiter.Request, command []string, host string) (d described, err error) {
	d.Algorithm = request.Policy.Algorithm
	if d.Go, err = goCode(request); err != nil {
		return d, err
	}
	d.Command = commandLine(command, request)
	d.Curl = curlLine(host, request)
	return d, nil
}

// goCode returns a request as Go code.
func goCode(request limiter.Request) (string, error) {
	var text strings.Builder
	text.WriteString("policy := limiter.Policy{\n")
	for _, f := range fields(request.Policy) {
		value := plain(f.value)
		switch v := f.value.(type) {
		case limiter.Algorithm:
			value = "limiter." + constants[v]
		case time.Duration:
			value = goDuration(v)
		case string, limiter.Calendar:
			value = strconv.Quote(value)
		}
		fmt.Fprintf(&text, "%s: %s,\n", f.Go, value)
	}
	verb, cost := "Allow", ""
	if request.Cost != 1 {
		verb, cost = "AllowN", ", "+printable.Number(request.Cost)
	}
	fmt.Fprintf(&text, "}\nr, err := l.%s(ctx, policy, %q%s)\n", verb, request.Key, cost)
	code, err := format.Source([]byte(text.String()))
	return string(code), err
}

// constants maps the algorithms to their names in Go.
var constants = map[limiter.Algorithm]string{
	limiter.LeakyBucket: "LeakyBucket", limiter.LeakyBucketQueue: "LeakyBucketQueue", limiter.TokenBucket: "TokenBucket",
	limiter.GCRA: "GCRA", limiter.FixedWindow: "FixedWindow", limiter.SlidingWindowCounter: "SlidingWindowCounter",
	limiter.SlidingWindowLog: "SlidingWindowLog",
}

// goDuration returns d as a whole number of the largest unit that divides it.
func goDuration(d time.Duration) string {
	for _, unit := range []struct {
		name  string
		value time.Duration
	}{{"Hour", time.Hour}, {"Minute", time.Minute}, {"Second", time.Second}, {"Millisecond", time.Millisecond}} {
		if d%unit.value == 0 {
			return times(d/unit.value, unit.name)
		}
	}
	return times(d/time.Microsecond, "Microsecond") // durations of a valid policy are whole microseconds
}

func times(n time.Duration, unit string) string {
	if n == 1 {
		return "time." + unit
	}
	return fmt.Sprintf("%d * time.%s", int64(n), unit)
}

// commandLine returns a request as a shell command that begins with command.
func commandLine(command []string, request limiter.Request) string {
	words := slices.Clone(command)
	for _, f := range fields(request.Policy) {
		flag := strings.ReplaceAll(f.Name, "_", "-")
		if f.Name == "name" {
			flag = "policy"
		}
		words = append(words, "--"+flag)
		if f.value != true {
			words = append(words, plain(f.value))
		}
	}
	if request.Cost != 1 {
		words = append(words, "--cost", printable.Number(request.Cost))
	}
	before := ""
	switch {
	case request.Key == "-": // "-" means standard input
		before = "echo - | "
	case strings.HasPrefix(request.Key, "-"):
		words = append(words, "--")
	}
	words = append(words, request.Key)
	for i := range words {
		words[i] = printable.Shell(words[i])
	}
	return before + strings.Join(words, " ")
}

// curlLine returns a curl command that sends a request to the playground at host.
func curlLine(host string, request limiter.Request) string {
	query := url.Values{"key": {request.Key}}
	for _, f := range fields(request.Policy) {
		if fixed[f.Name] == "" && f.Name != "algorithm" {
			query.Set(f.Name, plain(f.value))
		}
	}
	if request.Cost != 1 {
		query.Set("cost", printable.Number(request.Cost))
	}
	at := url.URL{Scheme: "http", Host: host, Path: "/limited/" + string(request.Policy.Algorithm), RawQuery: query.Encode()}
	return "curl -i " + printable.Shell(at.String())
}

// field is a field of a policy with its value.
type field struct {
	policyfile.Field
	value any
}

// fields returns the fields of a policy that are set.
func fields(p limiter.Policy) (set []field) {
	all := reflect.ValueOf(p)
	for _, f := range policyfile.FieldsOf(all.Type()) {
		if v := all.FieldByName(f.Go); !v.IsZero() {
			set = append(set, field{f, v.Interface()})
		}
	}
	return set
}

// plain returns a field's value as flags and URLs write it.
func plain(value any) string {
	switch v := value.(type) {
	case float64:
		return printable.Number(v)
	case time.Duration:
		return duration.Format(v)
	}
	return fmt.Sprint(value)
}
