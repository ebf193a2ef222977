package playground

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/limiter"
)

// PolicyName is the name of every policy of the playground but GCRA's.
const PolicyName = "playground"

// nameOf returns the name of an algorithm's policy. Under one name GCRA would decide on the rows
// of the token bucket.
func nameOf(a limiter.Algorithm) string {
	if a == limiter.GCRA {
		return PolicyName + "-gcra"
	}
	return PolicyName
}

// maxKeyBytes is the longest valid key in bytes.
const maxKeyBytes = 256

// model validates requests before they go to the database.
var model = limiter.NewMemory(nil)

// parseKey returns an error if a key is not valid.
func parseKey(key string) error {
	if key == "" {
		return api.BadField("key", "is empty: use a name, such as alice")
	}
	if len(key) > maxKeyBytes {
		return api.BadField("key", "is %d bytes long: %d at most", len(key), maxKeyBytes)
	}
	if _, err := model.Check(context.Background(), anyPolicy(limiter.GCRA), key, 0); err != nil {
		return api.ProblemOf(err, "")
	}
	return nil
}

// anyPolicy returns a valid policy of an algorithm, for operations on a key that do not
// depend on the numbers.
func anyPolicy(a limiter.Algorithm) limiter.Policy {
	if a == balance.Algorithm {
		return balance
	}
	return limiter.Policy{Name: nameOf(a), Algorithm: a, Limit: 1, Period: time.Second}
}

// parseRequest parses a policy and returns the request for cost units of it. If the request
// is not valid, it returns an error and the parts that could be parsed.
func parseRequest(policy []byte, key string, cost float64) (limiter.Request, error) {
	p, err := readPolicy(policy)
	request := p.Request(key, cost)
	if err == nil {
		err = checkRequest(request)
	}
	return request, err
}

// parseCosts returns one cost for each of n policies: costs or, if that is empty, 1 each.
func parseCosts(costs []float64, n int) ([]float64, error) {
	if len(costs) == 0 {
		return slices.Repeat([]float64{1}, n), nil
	}
	if len(costs) != n {
		return nil, api.BadField("costs", "are %d: must be as many as the %d policies, or none", len(costs), n)
	}
	return costs, nil
}

// readPolicy parses a policy and sets its name. checkRequest validates it.
func readPolicy(text []byte) (p limiter.Policy, _ error) {
	if len(text) == 0 {
		return p, api.BadField("policy", "is missing")
	}
	var about struct{ Algorithm limiter.Algorithm }
	_ = json.Unmarshal(text, &about) // the next Unmarshal returns its errors
	if err := json.Unmarshal(text, &p); err != nil {
		bad := api.BadJSON("policy", err)
		var policy *limiter.PolicyError
		if errors.As(err, &policy) {
			bad = api.ProblemOf(err, "")
		}
		bad.Algorithm = about.Algorithm
		return p, bad
	}
	for _, f := range fields(p) {
		if always := fixed[f.Name]; always != "" && plain(f.value) != always && (f.Name != "name" || p.Name != nameOf(p.Algorithm)) {
			bad := api.BadField(f.Name, "is %.40q: leave it out: it is always %s here", plain(f.value), always)
			bad.Algorithm = p.Algorithm
			return p, bad
		}
	}
	p.Name = nameOf(p.Algorithm)
	return p, nil
}

// checkRequest returns an error if a request is not valid.
func checkRequest(request limiter.Request) error {
	if request.Cost == 0 { // valid only for Check
		return &api.Problem{Message: "cost 0: must be positive", Field: "cost", Algorithm: request.Policy.Algorithm}
	}
	if _, err := model.Check(context.Background(), request.Policy, request.Key, request.Cost); err != nil {
		return api.ProblemOf(err, request.Policy.Algorithm)
	}
	return nil
}

// fixed are the fields of a policy that are the same for all policies here.
var fixed = map[string]string{"name": PolicyName, "durability": "durable", "on_error": "fail_closed", "local_share": "0", "shadow": "false"}

// parameters are the fields of a policy that are parameters of a URL's query.
var parameters = slices.DeleteFunc(policyfile.FieldsOf(reflect.TypeFor[limiter.Policy]()), func(f policyfile.Field) bool {
	return fixed[f.Name] != "" || f.Name == "algorithm"
})

// parseQuery parses the query of a URL of /limited/.
func parseQuery(a limiter.Algorithm, rawQuery string) (request limiter.Request, _ error) {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return request, &api.Problem{Message: "the query cannot be read: " + api.Sentence(err)}
	}
	request.Cost = 1
	fields := map[string]any{"algorithm": a}
	for name, values := range query {
		if len(values) > 1 {
			return request, api.BadField(name, "is given %d times", len(values))
		}
		at := slices.IndexFunc(parameters, func(f policyfile.Field) bool { return f.Name == name })
		text, want := values[0], "a number"
		switch {
		case name == "key":
			request.Key = text
		case name == "cost":
			request.Cost, err = strconv.ParseFloat(text, 64)
		case at < 0:
			known := ""
			for _, f := range parameters {
				known += f.Name + ", "
			}
			return request, &api.Problem{Message: "there is no parameter " + strconv.Quote(name) + ": use " + known + "cost and key"}
		case parameters[at].Type.Kind() == reflect.Float64:
			fields[name], err = strconv.ParseFloat(text, 64)
		case parameters[at].Type.Kind() == reflect.Bool:
			want = "true or false"
			fields[name], err = strconv.ParseBool(text)
		default:
			fields[name] = text
		}
		if err != nil {
			return request, api.BadField(name, "is %.40q: must be %s", text, want)
		}
	}
	if err := parseKey(request.Key); err != nil {
		return request, err
	}
	text, err := json.Marshal(fields)
	if err != nil { // infinite, or not a number
		return request, &api.Problem{Message: "limit and burst must be finite numbers"}
	}
	if request.Policy, err = readPolicy(text); err != nil {
		return request, err
	}
	return request, checkRequest(request)
}
