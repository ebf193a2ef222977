package ratelimit

import (
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// start is a whole minute and 20 seconds into an hour.
var start = time.Date(2026, 7, 1, 12, 0, 20, 0, time.UTC)

// server returns a server over memory whose clock stands at start.
func server(t testing.TB, config string, options Options) *Server {
	options.Logger = slog.New(slog.DiscardHandler)
	options.Now = func() time.Time { return start }
	return NewServer(limiter.NewMemory(&limiter.Config{Now: options.Now}), mustConfig(t, config), options)
}

// ask returns the answer to descriptors that have the keys and values of each text, as k=v,l=w, and
// then a limit by minute, as @n, and hits, as +n; +-n and +- are negative hits. Those of the
// request are n:.
func ask(t testing.TB, s *Server, descriptors ...string) *pb.RateLimitResponse {
	t.Helper()
	r, err := s.ShouldRateLimit(t.Context(), requestOf(t, descriptors...))
	if err != nil {
		t.Fatalf("%q: %v", descriptors, err)
	}
	return r
}

// requestOf returns the request of ask.
func requestOf(t testing.TB, descriptors ...string) *pb.RateLimitRequest {
	t.Helper()
	request := &pb.RateLimitRequest{Domain: "d"}
	for _, text := range descriptors {
		if n, isHits := strings.CutSuffix(text, ":"); isHits {
			must.OK(fmt.Sscan(n, &request.HitsAddend))(t)
			continue
		}
		text, hits, has := strings.Cut(text, "+")
		text, limit, own := strings.Cut(text, "@")
		d := descriptorOf()
		for entry := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, descriptorOf(key, value).GetEntries()...)
		}
		if own {
			d.Limit = &rlcommon.RateLimitDescriptor_RateLimitOverride{Unit: typev3.RateLimitUnit_MINUTE}
			must.OK(fmt.Sscan(limit, &d.Limit.RequestsPerUnit))(t)
		}
		if hits, d.IsNegativeHits = strings.CutPrefix(hits, "-"); has && hits != "" {
			var n uint64
			must.OK(fmt.Sscan(hits, &n))(t)
			d.HitsAddend = wrapperspb.UInt64(n)
		}
		request.Descriptors = append(request.Descriptors, d)
	}
	return request
}

// brief returns a response in short: the code, and for each descriptor its code, what remains
// and the limit.
func brief(r *pb.RateLimitResponse) string {
	text := short(r.GetOverallCode())
	for _, st := range r.GetStatuses() {
		text += fmt.Sprintf(" %s:%d", short(st.GetCode()), st.GetLimitRemaining())
		if l := st.GetCurrentLimit(); l != nil {
			text += fmt.Sprintf("/%d", l.GetRequestsPerUnit())
		}
	}
	return text
}

func short(c pb.RateLimitResponse_Code) string { return strings.TrimSuffix(c.String(), "_LIMIT") }

const twoLimits = `
domain: d
descriptors:
- key: user
  rate_limit: {unit: minute, requests_per_unit: 3}
- key: all
  rate_limit: {unit: hour, requests_per_unit: 5}
- key: open
- key: free
  rate_limit: {unlimited: true}
- key: none
  rate_limit: {unit: minute, requests_per_unit: 0}
- key: shadow
  shadow_mode: true
  rate_limit: {unit: minute, requests_per_unit: 1}
- key: q1
  quota_mode: true
  metadata: {plan: {first: 1}, from: q1}
  rate_limit: {unit: minute, requests_per_unit: 1}
- key: q2
  quota_mode: true
  metadata: {plan: {second: 2}, from: q2}
  rate_limit: {unit: minute, requests_per_unit: 2}
- key: counted
  rate_limit: {unit: minute, requests_per_unit: 3, pglimit: {counting: each}}
- key: bucket
  rate_limit: {unit: minute, requests_per_unit: 60, pglimit: {algorithm: token_bucket, burst: 4}}
- key: named
  rate_limit: {unit: minute, requests_per_unit: 3, name: n}
- key: replacing
  rate_limit: {unlimited: true, replaces: [{name: n}]}
`

// TestAnswers checks the answers to requests in a row.
func TestAnswers(t *testing.T) {
	t.Parallel()
	each, shadow, quota := Options{CountEach: true}, Options{Shadow: true}, Options{Quota: true}
	for name, c := range map[string]struct {
		options Options
		steps   []string // a request and its answer, one after the other
	}{
		"all or nothing": {steps: []string{
			"user=a all=", "OK OK:2/3 OK:4/5",
			"user=a all=", "OK OK:1/3 OK:3/5",
			"user=a all=", "OK OK:0/3 OK:2/5",
			"user=a all=", "OVER OVER:0/3 OK:2/5", // all= is not charged
			"user=b all=", "OK OK:2/3 OK:1/5",
			"2: user=b all=", "OVER OK:2/3 OVER:1/5",
			"user=b all=", "OK OK:1/3 OK:0/5",
		}},
		"each by itself": {options: each, steps: []string{
			"user=a all=", "OK OK:2/3 OK:4/5",
			"user=a+3 all=", "OVER OVER:0/3 OK:3/5",
			"user=a+0", "OVER OVER:0/3", // 4 were counted
			"user=a+1 all=+4", "OVER OVER:0/3 OVER:0/5",
			"all=+0 user=b+0", "OVER OVER:0/5 OK:3/3",
		}},
		"a limit that counts by itself": {steps: []string{
			"2: counted= user=a", "OK OK:1/3 OK:1/3",
			"2: counted= user=b", "OVER OVER:0/3 OK:0", // user=b is not asked
			"user=b", "OK OK:2/3",
			"counted=+0", "OVER OVER:0/3",
		}},
		"hits of descriptors": {steps: []string{
			"user=a+0", "OK OK:3/3",
			"user=a+2", "OK OK:1/3",
			"user=a+2 all=", "OVER OVER:0/3 OK:0", // was spent
			"user=a+0", "OVER OVER:0/3",
			"user=a", "OVER OVER:0/3",
			"all=", "OK OK:4/5",
			"bucket=+0", "OK OK:4/60", "bucket=+3", "OK OK:1/60", "bucket=+3", "OVER OVER:0/60", "bucket=+0", "OK OK:0/60", "bucket=+30", "OVER OVER:0/60",
		}},
		"negative hits": {steps: []string{
			"user=a@100+60", "OK OK:40/100", "user=a@100+-50", "OK OK:90/100", "user=a@100", "OK OK:89/100",
			"user=b+5", "OVER OVER:0/3", "user=b+-1 all=", "OK OK:0/3 OK:4/5", "user=b+-9", "OK OK:3/3", "2: user=b user=c+-", "OK OK:1/3 OK:3/3", "2: user=b+-", "OK OK:3/3",
			"bucket=+4", "OK OK:0/60", "bucket=+-3", "OK OK:3/60", "counted=+4", "OVER OVER:0/3", "counted=+-2", "OK OK:1/3",
			"none=+-2", "OK OK:0", "free=+-2", fmt.Sprintf("OK OK:%d", uint32(math.MaxUint32)), "shadow=+-1 q1=+-1", "OK OK:1/1 OK:1/1",
			fmt.Sprintf("bucket=+-%d", uint64(math.MaxUint64)), "OK OK:4/60", "all=+9 bucket=+2 bucket=+-1", "OVER OVER:0/5 OK:2/60 OK:3/60",
		}},
		"two limits of the same entries": {steps: []string{
			"user=a user=a@2", "OK OK:2/3 OK:0/2",
			"user=a user=a@2 user=b", "OVER OK:0/3 OVER:0/2 OK:0",
			"user=a@9 user=a user=a@9", "OVER OK:6/9 OVER:0/3 OK:0",
			"user=a", "OK OK:0/3", // both were given back
		}},
		"two limits of the same entries, each by itself": {options: each, steps: []string{
			"user=a user=a@1", "OVER OK:2/3 OVER:0/1", "user=a@9 user=a", "OVER OK:6/9 OVER:0/3",
		}},
		"one descriptor twice": {steps: []string{
			"user=a user=a", "OK OK:2/3 OK:1/3",
			"user=a user=a", "OVER OK:1/3 OVER:1/3",
			"user=a", "OK OK:0/3",
		}},
		"checks": {steps: []string{
			"user=a+0", "OK OK:3/3",
			"user=a+3", "OK OK:0/3",
			"user=a+0", "OK OK:0/3",
			"user=b none=+0", "OK OK:2/3 OK:0/0",
			"user=b none=", "OVER OK:0 OVER:0/0",
			"user=b+0", "OK OK:2/3",
		}},
		"without a limit": {steps: []string{
			"open=x", "OK OK:0", "what=x", "OK OK:0", "free=x user=a", fmt.Sprintf("OK OK:%d OK:2/3", uint32(math.MaxUint32)),
		}},
		"hits beyond what can be counted": {steps: []string{
			fmt.Sprintf("bucket=+%d", uint64(math.MaxUint64)), "OVER OVER:0/60",
			fmt.Sprintf("%d: user=a", uint32(math.MaxUint32)), "OVER OVER:3/3",
			fmt.Sprintf("counted=+%d", uint64(math.MaxUint64)), "OVER OVER:0/3",
		}},
		"shadow_mode": {steps: []string{
			"shadow= user=a", "OK OK:0/1 OK:2/3",
			"shadow= user=a", "OK OK:0/1 OK:1/3",
			"9: shadow= user=a", "OVER OK:0 OVER:1/3",
			"shadow=+0", "OK OK:0/1",
		}},
		"quota_mode": {steps: []string{
			"q1= q2= user=a", "OK OK:0/1 OK:1/2 OK:2/3",
			"q1= q2= user=a", "OK OVER:0/1 OK:0/2 OK:1/3",
			"q1= q2= user=a", "OVER OVER:0/1 OVER:0/2 OK:0/3",
			"user=a", "OK OK:0/3", // was given back
		}},
		"a server in quota mode": {options: quota, steps: []string{
			"user=a+3 all=", "OK OK:0/3 OK:4/5",
			"user=a all=", "OK OVER:0/3 OK:3/5",
			"user=a", "OVER OVER:0/3",
		}},
		"a server that is a shadow": {options: shadow, steps: []string{
			"user=a+3 all=", "OK OK:0/3 OK:4/5",
			"user=a all=", "OK OVER:0/3 OK:3/5",
			"none= all=", "OK OVER:0/0 OK:2/5",
		}},
		"a bucket": {steps: []string{
			"bucket=+4", "OK OK:0/60", "bucket=", "OVER OVER:0/60", "bucket=+5", "OVER OVER:0/60",
		}},
		"replaced": {steps: []string{
			"9: named=", "OVER OVER:3/3",
			"9: named= replacing=", fmt.Sprintf("OK OK:0 OK:%d", uint32(math.MaxUint32)),
		}},
	} {
		s := server(t, twoLimits, c.options)
		for i := 0; i < len(c.steps); i += 2 {
			if got := brief(ask(t, s, strings.Fields(c.steps[i])...)); got != c.steps[i+1] {
				t.Errorf("%s: step %d, %s: %s, want %s", name, i/2, c.steps[i], got, c.steps[i+1])
			}
		}
	}
}

// TestLoweredLimits checks that what was used counts under a lower limit: checks see it too.
func TestLoweredLimits(t *testing.T) {
	t.Parallel()
	s := server(t, twoLimits, Options{})
	ask(t, s, "3:", "user=a", "bucket=")
	ask(t, s, "4:", "all=")
	s.SetConfig(mustConfig(t, strings.NewReplacer("requests_per_unit: 3", "requests_per_unit: 2", "requests_per_unit: 5", "requests_per_unit: 4", "burst: 4", "burst: 2").Replace(twoLimits)), nil)
	for _, c := range [][2]string{{"user=a+0", "OVER OVER:0/2"}, {"user=a", "OVER OVER:0/2"}, {"all=+0", "OK OK:0/4"}, {"bucket=+0", "OVER OVER:0/60"}} {
		if got := brief(ask(t, s, c[0])); got != c[1] {
			t.Errorf("%s: %s, want %s", c[0], got, c[1])
		}
	}
}

// TestLimitsOfRequests checks limits that a request brings: they count with the configured ones.
func TestLimitsOfRequests(t *testing.T) {
	t.Parallel()
	s := server(t, twoLimits, Options{})
	limited := func(unit typev3.RateLimitUnit, n uint32, pairs ...string) *rlcommon.RateLimitDescriptor {
		d := descriptorOf(pairs...)
		d.Limit = &rlcommon.RateLimitDescriptor_RateLimitOverride{Unit: unit, RequestsPerUnit: n}
		return d
	}
	do := func(domain string, d ...*rlcommon.RateLimitDescriptor) (string, error) {
		r, err := s.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: domain, Descriptors: d, HitsAddend: 2})
		return brief(r), err
	}
	ask(t, s, "user=a")
	for _, c := range []struct {
		d    *rlcommon.RateLimitDescriptor
		want string
	}{
		{limited(typev3.RateLimitUnit_MINUTE, 9, "user", "a"), "OK OK:6/9"},
		{limited(typev3.RateLimitUnit_MINUTE, 9, "user", "a"), "OK OK:4/9"},
		{limited(typev3.RateLimitUnit_HOUR, 9, "user", "a"), "OK OK:7/9"},
		{limited(typev3.RateLimitUnit_YEAR, 2, "new", ""), "OK OK:0/2"},
		{limited(typev3.RateLimitUnit_MONTH, 0, "new", ""), "OVER OVER:0/0"},
		{limited(typev3.RateLimitUnit_DAY, 5), "OK OK:3/5"},
	} {
		if got, err := do("d", c.d); got != c.want || err != nil {
			t.Errorf("%v: %s, error %v; want %s", c.d, got, err, c.want)
		}
	}
	if got, err := do("elsewhere", limited(typev3.RateLimitUnit_DAY, 5, "a", "b")); got != "OK OK:0" || err != nil {
		t.Errorf("in a domain without a configuration: %s, error %v", got, err)
	}
	times := func(n uint32, unit typev3.RateLimitUnit) *rlcommon.RateLimitDescriptor {
		d := limited(unit, 5, "times", "")
		d.Limit.UnitMultiplier = wrapperspb.UInt32(n)
		return d
	}
	for want, d := range map[string]*rlcommon.RateLimitDescriptor{
		"unit UNKNOWN": limited(0, 5, "a", "b"), "unit_multiplier 0: must be": times(0, typev3.RateLimitUnit_DAY), "unit_multiplier 101: must be": times(101, typev3.RateLimitUnit_YEAR),
		"unit_multiplier 4294967295: must be": times(math.MaxUint32, typev3.RateLimitUnit_SECOND),
	} {
		if _, err := do("d", d); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "descriptors[0].limit."+want) {
			t.Errorf("%v: error %v, want InvalidArgument with %q", d, err, want)
		}
	}
	for n, want := range map[uint32]time.Duration{1: 40 * time.Second, 3: 160 * time.Second, 60: 59*time.Minute + 40*time.Second} {
		r, err := s.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: []*rlcommon.RateLimitDescriptor{times(n, typev3.RateLimitUnit_MINUTE)}})
		if st := r.GetStatuses()[0]; err != nil || st.GetLimitRemaining() != 4 || st.GetDurationUntilReset().AsDuration() != want || st.GetCurrentLimit().GetUnitMultiplier().GetValue() != n {
			t.Errorf("%d minutes: %v, error %v; want a reset after %v", n, st, err, want)
		}
	}
}

// TestTimes checks the times until limits are reset.
func TestTimes(t *testing.T) {
	t.Parallel()
	s := server(t, twoLimits+`
- key: long
  rate_limit: {unit: week, requests_per_unit: 3}
- key: monthly
  rate_limit: {requests_per_unit: 3, pglimit: {calendar: month}}
`, Options{})
	for _, c := range []struct {
		d    string
		want time.Duration
	}{
		{"user=a", 40 * time.Second},
		{"all=", 59*time.Minute + 40*time.Second},
		{"none=", 40 * time.Second},
		{"long=", 7*24*time.Hour - time.Duration(start.Unix()%(7*86400))*time.Second},
		{"monthly=", time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC).Sub(start)},
		{"bucket=+3", 3 * time.Second},
		{"2: bucket=", time.Second}, // until it fits
		{"bucket=+2", 4 * time.Second},
	} {
		if got := ask(t, s, strings.Fields(c.d)...).GetStatuses()[0].GetDurationUntilReset().AsDuration(); got != c.want {
			t.Errorf("%s: %v, want %v", c.d, got, c.want)
		}
	}
	if d := ask(t, s, "5:", "bucket=").GetStatuses()[0].GetDurationUntilReset(); d != nil {
		t.Errorf("what never fits is reset after %v", d.AsDuration())
	}
}

// TestHeadersAndMetadata checks what is added to responses.
func TestHeadersAndMetadata(t *testing.T) {
	t.Parallel()
	s := server(t, twoLimits, Options{Headers: &Headers{"L", "R", "T"}, Metadata: true})
	headers := func(r *pb.RateLimitResponse) (text string) {
		for _, h := range r.GetResponseHeadersToAdd() {
			text += h.GetKey() + h.GetValue() + " "
		}
		return text
	}
	for _, c := range []struct{ d, want string }{
		{"open=", ""}, {"all= user=a", "L3 R2 T40 "}, {"q1= user=a", "L1 R0 T40 "}, {"5: all=", "L5 R4 T3580 "}, {"q1= q2=", "L1 R0 T40 "},
	} {
		if got := headers(ask(t, s, strings.Fields(c.d)...)); got != c.want {
			t.Errorf("%s: headers %s, want %s", c.d, got, c.want)
		}
	}
	s = server(t, twoLimits, Options{Metadata: true})
	for _, want := range []string{
		`map[descriptors:[map[entries:[q1=x] hitsAddend:1] map[entries:[q2=]]] domain:d metadata:map[from:q1 plan:map[first:1 second:2]]]`,
		`map[descriptors:[map[entries:[q1=x] hitsAddend:1] map[entries:[q2=]]] domain:d metadata:map[from:q2 plan:map[second:2]]]`,
		`map[descriptors:[map[entries:[q1=x] hitsAddend:1] map[entries:[q2=]]] domain:d]`,
	} {
		if got := fmt.Sprint(ask(t, s, "q1=x+1", "q2=").GetDynamicMetadata().AsMap()); got != want {
			t.Errorf("metadata %s\nwant %s", got, want)
		}
	}
}
