package playground

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/site/api"
	"github.com/pglimit/pglimit/limiter"
)

// PolicyName is the name of every policy of the playground.
const PolicyName = "playground"

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
	return limiter.Policy{Name: PolicyName, Algorithm: a, Limit: 1, Period: time.Second}
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
	var bad *api.Problem
	switch {
	case p.Name != "" && p.Name != PolicyName:
		bad = api.BadField("name", "is %.40q: leave it out: it is always %q here", p.Name, PolicyName)
	case p.Durability != limiter.Durable:
		bad = api.BadField("durability", "is %s: leave it out: it is always durable here", p.Durability)
	case p.OnError != limiter.FailClosed:
		bad = api.BadField("on_error", "is %s: leave it out: it is always fail_closed here", p.OnError)
	}
	if bad != nil {
		bad.Algorithm = p.Algorithm
		return p, bad
	}
	p.Name = PolicyName
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

// parameters maps the parameters of a URL's query to their parsers. Each is the field
// of a policy with the same name in JSON.
var parameters = map[string]func(text string) (any, error){
	"limit": number, "period": asIs, "burst": number, "tick": asIs, "aligned": boolean,
	"calendar": asIs, "time_zone": asIs, "block_for": asIs,
}

func asIs(s string) (any, error)    { return s, nil }
func number(s string) (any, error)  { return strconv.ParseFloat(s, 64) }
func boolean(s string) (any, error) { return strconv.ParseBool(s) }

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
		switch parse, known := parameters[name]; {
		case name == "key":
			request.Key = values[0]
		case name == "cost":
			cost, err := strconv.ParseFloat(values[0], 64)
			if err != nil {
				return request, api.BadField(name, "is %.40q: must be a number", values[0])
			}
			request.Cost = cost
		case !known:
			return request, &api.Problem{Message: "there is no parameter " + strconv.Quote(name) + ": use limit, period, burst, tick, aligned, calendar, time_zone, block_for, cost and key"}
		default:
			value, err := parse(values[0])
			if err != nil {
				return request, api.BadField(name, "is %.40q: must be %s", values[0], map[bool]string{true: "true or false", false: "a number"}[name == "aligned"])
			}
			fields[name] = value
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
