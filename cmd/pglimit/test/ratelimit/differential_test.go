package ratelimit

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/pglimittest"
)

func TestMain(m *testing.M) { pglimittest.Main(m) }

// backends make limiters, and have the number of runs of each test.
var backends = map[string]struct {
	runs uint64
	make func(*testing.T, *clock) *limiter.Limiter
}{
	"memory": {50, func(_ *testing.T, c *clock) *limiter.Limiter { return limiter.NewMemory(&limiter.Config{Now: c.Now}) }},
	"postgres": {3, func(t *testing.T, c *clock) *limiter.Limiter {
		l := must.OK(limiter.New(pglimittest.Pool(t), &limiter.Config{Now: c.Now, DisableDenyCache: true, Timeout: time.Minute}))(t)
		return l
	}},
}

// pair is both services with one configuration and one clock.
type pair struct {
	theirs *theirs
	ours   *ratelimit.Server
	clock  *clock
	text   string // the configuration
}

func newPair(t *testing.T, l *limiter.Limiter, c *clock, prefix string, options ratelimit.Options) *pair {
	options.Headers, options.Metadata = &ratelimit.Headers{Limit: "RateLimit-Limit", Remaining: "RateLimit-Remaining", Reset: "RateLimit-Reset"}, true
	options.Logger, options.Now = slog.New(slog.DiscardHandler), c.Now
	return &pair{theirs: newTheirs(t, c, prefix), ours: ratelimit.NewServer(l, nil, options), clock: c}
}

// configure gives both a configuration.
func (p *pair) configure(t *testing.T, text string) {
	t.Helper()
	p.text = text
	c, err := p.theirs.load(text)
	d, ourErr := ratelimit.Parse("test.yaml", []byte(text))
	var config *ratelimit.Config
	if ourErr == nil {
		config, ourErr = ratelimit.NewConfig(false, d)
	}
	if err != nil || ourErr != nil {
		t.Fatalf("theirs: %v, ours: %v\n%s", err, ourErr, text)
	}
	p.theirs.service.SetConfig(event{c}, false)
	p.ours.SetConfig(config, nil)
}

// ask asks both.
func (p *pair) ask(t *testing.T, request *pb.RateLimitRequest) (theirs, ours *pb.RateLimitResponse) {
	t.Helper()
	theirs, err := p.theirs.ask(proto.CloneOf(request))
	ours, ourErr := p.ours.ShouldRateLimit(t.Context(), proto.CloneOf(request))
	if err != nil || ourErr != nil {
		t.Fatalf("theirs: %v, ours: %v\n%s\n%s", err, ourErr, protojson.Format(request), p.text)
	}
	for _, r := range []*pb.RateLimitResponse{theirs, ours} {
		for _, d := range r.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues() {
			if f := d.GetStructValue().GetFields(); f["limit"] != nil { // its text has blanks at random
				f["limit"] = structpb.NewStringValue(strings.ReplaceAll(f["limit"].GetStringValue(), " ", ""))
			}
		}
	}
	delete(theirs.GetDynamicMetadata().GetFields(), "quotaModeEnabled") // of older versions
	return theirs, ours
}

func (p *pair) same(t *testing.T, seed uint64, step int, request *pb.RateLimitRequest, theirs, ours proto.Message) {
	t.Helper()
	if !proto.Equal(theirs, ours) {
		t.Fatalf("seed %d, step %d: %s\ntheirs %s\nours %s\n%s", seed, step, protojson.Format(request), protojson.Format(theirs), protojson.Format(ours), p.text)
	}
}

// setEnv sets what envoyproxy/ratelimit reads from the environment when it is configured.
func setEnv(t *testing.T, more ...string) {
	for _, name := range append(more, "LIMIT_RESPONSE_HEADERS_ENABLED", "RESPONSE_DYNAMIC_METADATA") {
		t.Setenv(name, "true")
	}
}

// TestCountEachIsTheirs compares every field of the answers, and all metrics, where each
// descriptor is counted by itself, while limits change.
func TestCountEachIsTheirs(t *testing.T) {
	globals := []string{"", "SHADOW_MODE"}
	if newest { // older versions answer otherwise
		globals = append(globals, "QUOTA_MODE")
	}
	for _, global := range globals {
		for name, b := range backends {
			t.Run(name+global, func(t *testing.T) {
				options := ratelimit.Options{CountEach: true, Shadow: global == "SHADOW_MODE", Quota: global == "QUOTA_MODE"}
				setEnv(t, strings.Fields(global)...)
				answers, over := 0, 0
				c := &clock{now: 1_780_000_000}
				l := b.make(t, c)
				for seed := range b.runs {
					domain := fmt.Sprintf("each%s-%d", strings.ToLower(global), seed)
					d := newDraw(seed, domain)
					d.modes = true
					p := newPair(t, l, c, name, options)
					for change := range uint64(3) {
						again := *d // the same descriptors each time
						again.Rand = rand.New(rand.NewPCG(seed, 2))
						p.configure(t, again.config(rand.New(rand.NewPCG(seed, change))))
						for step := range 40 {
							d.advance(c)
							request := d.request()
							theirs, ours := p.ask(t, request)
							p.same(t, seed, step, request, theirs, ours)
							if answers++; theirs.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT {
								over++
							}
						}
					}
					var out strings.Builder
					must.Succeed(t, p.ours.WriteMetrics(&out))
					if lines := difference(p.theirs.counts(), parsed(out.String())); len(lines) > 0 {
						t.Fatalf("seed %d: metrics differ:\n%s\n%s", seed, strings.Join(lines, "\n"), p.text)
					}
				}
				t.Logf("%d answers were the same, %d of them over the limit", answers, over)
				if global == "" && over < answers/20 {
					t.Errorf("only %d of %d answers are over the limit", over, answers)
				}
			})
		}
	}
}

// TestTogetherIsTheirsUntilADenial compares the answers where all descriptors of a request are
// decided together: they are the same until one is over its limit, and so is that denial.
func TestTogetherIsTheirsUntilADenial(t *testing.T) {
	setEnv(t)
	for name, b := range backends {
		t.Run(name, func(t *testing.T) {
			answers, over := 0, 0
			c := &clock{now: 1_790_000_000}
			l := b.make(t, c)
			for seed := range 3 * b.runs {
				d := newDraw(seed, fmt.Sprintf("together-%d", seed))
				p := newPair(t, l, c, name, ratelimit.Options{})
				p.configure(t, d.config(d.Rand))
				for step := range 40 {
					d.advance(c)
					request := d.request()
					for _, desc := range request.GetDescriptors()[1:] { // whose order matters to both
						desc.HitsAddend = nil
					}
					theirs, ours := p.ask(t, request)
					answers++
					if theirs.GetOverallCode() == pb.RateLimitResponse_OK {
						p.same(t, seed, step, request, theirs, ours)
						continue
					}
					over++
					if ours.GetOverallCode() != theirs.GetOverallCode() {
						p.same(t, seed, step, request, theirs, ours)
					}
					for i, st := range ours.GetStatuses() { // what is not decided is OK
						if their := theirs.GetStatuses()[i]; st.GetCode() != their.GetCode() && st.GetCurrentLimit() != nil || st.GetCode() == pb.RateLimitResponse_OVER_LIMIT && their.GetCode() != st.GetCode() {
							p.same(t, seed, step, request, theirs, ours)
						}
					}
					break
				}
			}
			t.Logf("%d answers were the same, %d of them a denial", answers, over)
		})
	}
}
