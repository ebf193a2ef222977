package playground

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// model answers nobody: it is asked what is wrong with an ask before the database
// is asked for any.
var model = limiter.NewMemory(nil)

// check returns what is wrong with an ask.
func check(ask limiter.Ask) error {
	if ask.Cost == 0 { // what Check alone would take
		return &problem{Message: "cost 0: must be positive", Field: "cost", Algorithm: ask.Policy.Algorithm}
	}
	if _, err := model.Check(context.Background(), ask.Policy, ask.Key, ask.Cost); err != nil {
		return problemOf(err, ask.Policy.Algorithm)
	}
	return nil
}

// someone is a policy for what is about a key alone: where that is kept does not
// depend on the numbers.
func someone(a limiter.Algorithm) limiter.Policy {
	return limiter.Policy{Name: PolicyName, Algorithm: a, Limit: 1, Period: time.Second}
}

func checkKey(key string) error {
	if key == "" {
		return badField("key", "is empty: name somebody, such as alice")
	}
	if len(key) > maxKey {
		return badField("key", "is %d bytes long: %d at most", len(key), maxKey)
	}
	if _, err := model.Check(context.Background(), someone(limiter.GCRA), key, 0); err != nil {
		return problemOf(err, "")
	}
	return nil
}

// readPolicy reads a policy and gives it the playground's name. It is validated by
// check.
func readPolicy(text []byte) (p limiter.Policy, _ error) {
	if len(text) == 0 {
		return p, badField("policy", "is missing")
	}
	var about struct{ Algorithm limiter.Algorithm }
	_ = json.Unmarshal(text, &about) // an error is found again, and told
	if err := json.Unmarshal(text, &p); err != nil {
		bad := badJSON("policy", err)
		var policy *limiter.PolicyError
		if errors.As(err, &policy) {
			bad = problemOf(err, "")
		}
		bad.Algorithm = about.Algorithm
		return p, bad
	}
	var bad *problem
	switch {
	case p.Name != "" && p.Name != PolicyName:
		bad = badField("name", "is %.40q: leave it out, it is always %q here", p.Name, PolicyName)
	case p.Durability != limiter.Durable:
		bad = badField("durability", "is %s: leave it out, it is always durable here", p.Durability)
	case p.OnError != limiter.FailClosed:
		bad = badField("on_error", "is %s: leave it out, it is always fail_closed here", p.OnError)
	}
	if bad != nil {
		bad.Algorithm = p.Algorithm
		return p, bad
	}
	p.Name = PolicyName
	return p, nil
}

// parameters are how a URL's query names the fields of a policy.
var parameters = map[string]func(text string) (any, error){
	"limit": number, "period": asIs, "burst": number, "tick": asIs, "aligned": boolean,
	"calendar": asIs, "time_zone": asIs, "block_for": asIs,
}

func asIs(s string) (any, error)    { return s, nil }
func number(s string) (any, error)  { return strconv.ParseFloat(s, 64) }
func boolean(s string) (any, error) { return strconv.ParseBool(s) }

// readQuery reads the ask that a URL of /limited/ names.
func readQuery(a limiter.Algorithm, query url.Values) (ask limiter.Ask, _ error) {
	ask.Cost = 1
	fields := map[string]any{"algorithm": a}
	for name, values := range query {
		if len(values) > 1 {
			return ask, badField(name, "is given %d times", len(values))
		}
		switch parse, known := parameters[name]; {
		case name == "key":
			ask.Key = values[0]
		case name == "cost":
			cost, err := strconv.ParseFloat(values[0], 64)
			if err != nil {
				return ask, badField(name, "is %.40q: must be a number", values[0])
			}
			ask.Cost = cost
		case !known:
			return ask, &problem{Message: "there is no parameter " + strconv.Quote(name) + ": take limit, period, burst, tick, aligned, calendar, time_zone, block_for, cost and key"}
		default:
			value, err := parse(values[0])
			if err != nil {
				return ask, badField(name, "is %.40q: must be %s", values[0], map[bool]string{true: "true or false", false: "a number"}[name == "aligned"])
			}
			fields[name] = value
		}
	}
	if err := checkKey(ask.Key); err != nil {
		return ask, err
	}
	text, err := json.Marshal(fields)
	if err != nil { // infinite, or not a number
		return ask, &problem{Message: "limit and burst must be finite numbers"}
	}
	if ask.Policy, err = readPolicy(text); err != nil {
		return ask, err
	}
	return ask, check(ask)
}

// askedKey is how a request's context carries the ask that was read from it.
type askedKey struct{}

// asked is what httplimit asks for.
func asked(r *http.Request) ([]limiter.Ask, error) {
	return []limiter.Ask{r.Context().Value(askedKey{}).(limiter.Ask)}, nil
}

// longestWait is how long a request of /limited/ waits for its turn in a queue; one
// whose turn is later is denied.
const longestWait = time.Minute

// forCurl hands on requests of /limited/ with their ask read.
func (s *Server) forCurl(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			err = &problem{Message: "the query cannot be read: " + sentence(err)}
		}
		var ask limiter.Ask
		if err == nil {
			ask, err = readQuery(limiter.Algorithm(r.PathValue("algorithm")), query)
		}
		if err == nil {
			err = s.hub.admit(ask.Key)
		}
		if err != nil {
			answer(func(http.ResponseWriter, *http.Request) (any, error) { return nil, err })(w, r)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), longestWait)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, askedKey{}, ask)))
	})
}

// allowed is what /limited/ answers a request that is.
func allowed(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("allowed\n")) // a client that has gone needs no answer
}
