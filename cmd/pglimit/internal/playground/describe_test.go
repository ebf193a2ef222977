package playground

import (
	"encoding/json"
	"go/format"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/webpagetest"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// askedOf has requests with every kind of field.
var askedOf = []struct {
	policy string
	cost   float64
}{
	{`{"algorithm":"leaky_bucket","limit":10,"period":"10s","burst":20,"tick":"1.5s"}`, 1},
	{`{"algorithm":"leaky_bucket","limit":0.1,"period":"1h30m","tick":"7us"}`, 0.25},
	{`{"algorithm":"leaky_bucket_queue","limit":1,"period":"1s","burst":1e-9}`, 1e-9},
	{`{"algorithm":"token_bucket","limit":9007199254740992,"period":"24h","block_for":"90s"}`, 1000000},
	{`{"algorithm":"gcra","limit":1e-9,"period":"876600h"}`, 1e-10},
	{`{"algorithm":"fixed_window","limit":1000,"period":"1ms","aligned":true}`, 1},
	{`{"algorithm":"fixed_window","limit":100000,"calendar":"month","time_zone":"Europe/Vienna","anchor":"2024-01-31"}`, 1},
	{`{"algorithm":"sliding_window_counter","limit":2.5,"period":"1m"}`, 3},
	{`{"algorithm":"sliding_window_log","limit":3,"period":"2m0.000001s"}`, 1},
}

// wanted returns the request for a policy in JSON.
func wanted(t *testing.T, policy string, key string, cost float64) limiter.Request {
	t.Helper()
	var p limiter.Policy
	must.Succeed(t, json.Unmarshal([]byte(policy), &p))
	p.Name = nameOf(p.Algorithm)
	return p.Request(key, cost)
}

// describeSite serves descriptions whose command lines begin with command.
func describeSite(t *testing.T, command ...string) webpagetest.Page {
	t.Helper()
	return webpagetest.New(t, describeHandler(command))
}

// describeAll returns the descriptions of all of askedOf.
func describeAll(t *testing.T, s webpagetest.Page, key string) []described {
	t.Helper()
	var all []described
	for _, a := range askedOf {
		body := must.OK(json.Marshal(map[string]any{"key": key, "policies": []json.RawMessage{json.RawMessage(a.policy)}, "costs": []float64{a.cost}}))(t)
		var got struct{ Policies []described }
		s.Post(t, "/api/describe", string(body), &got)
		if len(got.Policies) != 1 || got.Policies[0].Error != "" {
			t.Fatalf("%s: %+v", a.policy, got)
		}
		all = append(all, got.Policies...)
	}
	return all
}

// TestDescribeText: the three forms of one policy.
func TestDescribeText(t *testing.T) {
	t.Parallel()
	s := describeSite(t, "pglimit", "allow", "--data-dir", "my data")
	got := describeAll(t, s, "alice")[0]
	want := described{
		Algorithm: limiter.LeakyBucket,
		Go: `policy := limiter.Policy{
	Name:      "playground",
	Algorithm: limiter.LeakyBucket,
	Limit:     10,
	Period:    10 * time.Second,
	Burst:     20,
	Tick:      1500 * time.Millisecond,
}
r, err := l.Allow(ctx, policy, "alice")
`,
		Command: "pglimit allow --data-dir 'my data' --policy playground --algorithm leaky_bucket --limit 10 --period 10s --burst 20 --tick 1.5s alice",
		Curl:    "curl -i '" + s.URL + "/limited/leaky_bucket?burst=20&key=alice&limit=10&period=10s&tick=1.5s'",
	}
	if got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for i, want := range []struct{ command, code string }{
		{"", ""},
		{"--period 1h30m", "Tick:      7 * time.Microsecond,"},
		{"--burst 0.000000001", "Burst:     0.000000001,\n}\nr, err := l.AllowN(ctx, policy, \"O'Neill \\n\", 0.000000001)"},
		{"--limit 9007199254740992 --period 24h --block-for 1m30s --cost 1000000", "BlockFor:  90 * time.Second,"},
		{"--limit 0.000000001 --period 36525d", "Period:    876600 * time.Hour,"},
		{"--aligned", "Aligned:   true,"},
		{"--calendar month --time-zone Europe/Vienna --anchor 2024-01-31", "Calendar:  \"month\",\n\tTimeZone:  \"Europe/Vienna\",\n\tAnchor:    \"2024-01-31\","},
		{"--cost 3", "Period:    time.Minute,\n}\nr, err := l.AllowN(ctx, policy, \"O'Neill \\n\", 3)"},
		{"--period 2m0.000001s", "Period:    120000001 * time.Microsecond,"},
	} {
		got := describeAll(t, s, "O'Neill \n")[i]
		if formatted, err := format.Source([]byte(got.Go)); err != nil || string(formatted) != got.Go {
			t.Errorf("not formatted by gofmt: %v\n%s", err, got.Go)
		}
		if !strings.Contains(got.Command, want.command) || !strings.Contains(got.Go, want.code) {
			t.Errorf("%s\n%s\nwant %s in it", got.Command, got.Go, want)
		}
	}
	for _, a := range limiter.Algorithms() {
		if !strings.EqualFold(constants[a], strings.ReplaceAll(string(a), "_", "")) {
			t.Errorf("%s is the constant %q", a, constants[a])
		}
	}
}

// TestDescribeCommandQuoted: a shell parses any key as one word.
func TestDescribeCommandQuoted(t *testing.T) {
	t.Parallel()
	s := describeSite(t, "pglimit", "allow")
	var printable strings.Builder
	for c := ' '; c <= '~'; c++ {
		printable.WriteRune(c)
	}
	for _, key := range []string{printable.String(), "a b", "'", "''x", "-", "--help", "$(id)", "a\nb"} {
		command := describeAll(t, s, key)[0].Command
		out, err := exec.CommandContext(t.Context(), "sh", "-c", `pglimit() { for last; do :; done; if [ "$last" = - ]; then cat; else printf '%s\n' "$last"; fi; }; `+command).Output()
		if err != nil || string(out) != key+"\n" {
			t.Errorf("%s: %q, %v", command, out, err)
		}
	}
}

// TestDescribeCurl: the playground parses the URL shown as the same policy.
func TestDescribeCurl(t *testing.T) {
	t.Parallel()
	s := describeSite(t, "pglimit", "allow")
	for _, key := range []string{"alice", "O'Neill", "a&b=c d+e%2F#π\n"} {
		for i, d := range describeAll(t, s, key) {
			out, err := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(d.Curl, "curl -i ", "printf %s ", 1)).Output()
			if err != nil {
				t.Fatalf("%s: %v", d.Curl, err)
			}
			at := must.OK(url.Parse(string(out)))(t)
			got, err := parseQuery(limiter.Algorithm(strings.TrimPrefix(at.Path, "/limited/")), at.RawQuery)
			if want := wanted(t, askedOf[i].policy, key, askedOf[i].cost); err != nil || got != want || at.Scheme+"://"+at.Host != s.URL {
				t.Errorf("%s: %v\ngot %+v\nwant %+v", d.Curl, err, got, want)
			}
		}
	}
}

func TestDescribeErrors(t *testing.T) {
	t.Parallel()
	s := describeSite(t, "pglimit", "allow")
	const good = `{"algorithm":"gcra","limit":1,"period":"1s"}`
	var got struct{ Policies []described }
	s.Post(t, "/api/describe", `{"key":"k","policies":[{"algorithm":"gcra","limit":-1,"period":"1s"},`+good+`,{"algorithm":"token_bucket","limit":true}]}`, &got)
	if len(got.Policies) != 3 || got.Policies[1].Go == "" || got.Policies[1].Error != "" {
		t.Fatalf("got %+v", got)
	}
	for i, want := range map[int]described{
		0: {Algorithm: limiter.GCRA, Field: "limit", Error: "Limit -1: must be from 1e-9 to 2^53"},
		2: {Algorithm: limiter.TokenBucket, Field: "limit", Error: "limit is a JSON bool: must be a number"},
	} {
		if got.Policies[i] != want {
			t.Errorf("got %+v, want %+v", got.Policies[i], want)
		}
	}
	for body, want := range map[string]struct{ field, text string }{
		`{"policies":[` + good + `]}`: {"key", "key is empty"},
		`{"key":"k"}`:                 {"policies", "policies are 0: must be from 1 to 7"},
		`{"key":"k","policies":[` + strings.Repeat(good+",", 7) + good + `]}`:            {"policies", "policies are 8"},
		`{"key":"k","policies":[` + good + `],"costs":[1,2]}`:                            {"costs", "costs are 2: must be as many as the 1 policies"},
		`{"key":"k","policies":[` + good + `],"costs":["1"]}`:                            {"costs", "costs is a JSON string: must be a number"},
		`{"key":"` + strings.Repeat("k", maxKeyBytes+1) + `","policies":[` + good + `]}`: {"key", "257 bytes"},
	} {
		s.ExpectProblem(t, http.MethodPost, "/api/describe", body, 400, want.field, "", want.text)
	}
	s.Post(t, "/api/describe", `{"key":"k","policies":[`+good+`],"costs":[0]}`, &got)
	if p := got.Policies[0]; p.Field != "cost" || p.Error != "cost 0: must be positive" {
		t.Errorf("cost 0: %+v", p)
	}
}
