package playground

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// described is a policy as its user would write it, or what is wrong with it.
type described struct {
	Algorithm limiter.Algorithm `json:"algorithm"`
	Go        string            `json:"go,omitempty"`
	Command   string            `json:"command,omitempty"`
	Curl      string            `json:"curl,omitempty"`
	Error     string            `json:"error,omitempty"`
	Field     string            `json:"field,omitempty"`
}

// describe answers how to ask the same elsewhere.
func (s *Server) describe(w http.ResponseWriter, r *http.Request) (any, error) {
	var in struct {
		Key      string            `json:"key"`
		Policies []json.RawMessage `json:"policies"`
		Costs    []float64         `json:"costs"` // of each policy; empty is 1 of all
	}
	if err := read(w, r, &in); err != nil {
		return nil, err
	}
	if err := checkKey(in.Key); err != nil {
		return nil, err
	}
	if most := len(limiter.Algorithms()); len(in.Policies) < 1 || len(in.Policies) > most {
		return nil, badField("policies", "are %d: must be from 1 to %d", len(in.Policies), most)
	}
	if err := checkCosts(in.Costs, in.Policies); err != nil {
		return nil, err
	}
	list := make([]described, len(in.Policies))
	for i, text := range in.Policies {
		p, err := readPolicy(text)
		ask := p.Ask(in.Key, costOf(in.Costs, i))
		if err == nil {
			err = check(ask)
		}
		var bad *problem
		if errors.As(err, &bad) {
			list[i] = described{Algorithm: bad.Algorithm, Error: bad.Message, Field: bad.Field}
		} else if list[i], err = s.describeAsk(ask, r.Host); err != nil {
			return nil, err
		}
	}
	return map[string][]described{"policies": list}, nil
}

func checkCosts(costs []float64, policies []json.RawMessage) error {
	if len(costs) != 0 && len(costs) != len(policies) {
		return badField("costs", "are %d: must be as many as the %d policies, or none", len(costs), len(policies))
	}
	return nil
}

// costOf is the i-th policy's.
func costOf(costs []float64, i int) float64 {
	if len(costs) == 0 {
		return 1
	}
	return costs[i]
}

func (s *Server) describeAsk(ask limiter.Ask, host string) (d described, err error) {
	d.Algorithm = ask.Policy.Algorithm
	if d.Go, err = goCode(ask); err != nil {
		return d, err
	}
	query := url.Values{"key": {ask.Key}}
	for _, f := range fields(ask.Policy) {
		if f.name != "name" && f.name != "algorithm" {
			query.Set(f.name, plain(f.value))
		}
	}
	if ask.Cost != 1 {
		query.Set("cost", decimal(ask.Cost))
	}
	d.Command = commandLine(s.config.Command, ask)
	at := url.URL{Scheme: "http", Host: host, Path: "/limited/" + string(ask.Policy.Algorithm), RawQuery: query.Encode()}
	d.Curl = "curl -i " + shellQuote(at.String())
	return d, nil
}

// field is one of a policy's, by its name in JSON.
type field struct {
	name  string
	value any
}

// fields are those of a policy that are set.
func fields(p limiter.Policy) (set []field) {
	for _, f := range []field{
		{"name", p.Name}, {"algorithm", p.Algorithm}, {"limit", p.Limit}, {"period", p.Period}, {"burst", p.Burst}, {"tick", p.Tick},
		{"aligned", p.Aligned}, {"calendar", p.Calendar}, {"time_zone", p.TimeZone}, {"block_for", p.BlockFor},
	} {
		if !reflect.ValueOf(f.value).IsZero() {
			set = append(set, f)
		}
	}
	return set
}

// plain is a field's value as flags and URLs have it.
func plain(value any) string {
	switch v := value.(type) {
	case float64:
		return decimal(v)
	case time.Duration:
		text := v.String()
		if short, whole := strings.CutSuffix(text, "m0s"); whole {
			text = short + "m"
		}
		if short, whole := strings.CutSuffix(text, "h0m"); whole {
			text = short + "h"
		}
		return text
	}
	return fmt.Sprint(value)
}

// constants are the algorithms' names in Go.
var constants = map[limiter.Algorithm]string{
	limiter.LeakyBucket: "LeakyBucket", limiter.LeakyBucketQueue: "LeakyBucketQueue", limiter.TokenBucket: "TokenBucket",
	limiter.GCRA: "GCRA", limiter.FixedWindow: "FixedWindow", limiter.SlidingWindowCounter: "SlidingWindowCounter",
	limiter.SlidingWindowLog: "SlidingWindowLog",
}

// goCode is an ask in Go.
func goCode(ask limiter.Ask) (string, error) {
	var text strings.Builder
	text.WriteString("policy := limiter.Policy{\n")
	for _, f := range fields(ask.Policy) {
		value := plain(f.value)
		switch v := f.value.(type) {
		case limiter.Algorithm:
			value = "limiter." + constants[v]
		case time.Duration:
			value = goDuration(v)
		case string, limiter.Calendar:
			value = strconv.Quote(value)
		}
		fmt.Fprintf(&text, "%s: %s,\n", goNames[f.name], value)
	}
	verb, cost := "Allow", ""
	if ask.Cost != 1 {
		verb, cost = "AllowN", ", "+decimal(ask.Cost)
	}
	fmt.Fprintf(&text, "}\nr, err := l.%s(ctx, policy, %q%s)\n", verb, ask.Key, cost)
	code, err := format.Source([]byte(text.String()))
	return string(code), err
}

// decimal is a number as people write it, exact in Go, on a command line and in a
// URL.
func decimal(v float64) string {
	if math.Abs(v) < 1e-6 {
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// goDuration is d as a product of a whole number and the largest unit that can be.
func goDuration(d time.Duration) string {
	for _, unit := range []struct {
		name  string
		value time.Duration
	}{{"Hour", time.Hour}, {"Minute", time.Minute}, {"Second", time.Second}, {"Millisecond", time.Millisecond}} {
		if d%unit.value == 0 {
			return times(d/unit.value, unit.name)
		}
	}
	return times(d/time.Microsecond, "Microsecond") // a policy's are whole
}

func times(n time.Duration, unit string) string {
	if n == 1 {
		return "time." + unit
	}
	return fmt.Sprintf("%d * time.%s", int64(n), unit)
}

// commandLine is an ask as a line for the shell that begins with command.
func commandLine(command []string, ask limiter.Ask) string {
	words := slices.Clone(command)
	for _, f := range fields(ask.Policy) {
		words = append(words, "--"+strings.ReplaceAll(f.name, "_", "-"))
		if f.value != true {
			words = append(words, plain(f.value))
		}
	}
	if ask.Cost != 1 {
		words = append(words, "--cost", decimal(ask.Cost))
	}
	before := ""
	switch {
	case ask.Key == "-": // which is standard input
		before = "echo - | "
	case strings.HasPrefix(ask.Key, "-"):
		words = append(words, "--")
	}
	words = append(words, ask.Key)
	for i := range words {
		words[i] = shellQuote(words[i])
	}
	return before + strings.Join(words, " ")
}

// shellQuote quotes a word for a POSIX shell, if it has to be.
func shellQuote(word string) string {
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+,", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !safe(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
