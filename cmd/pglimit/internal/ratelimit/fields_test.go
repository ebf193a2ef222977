package ratelimit

import (
	"os"
	"slices"
	"strings"
	"testing"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pglimit/pglimit/internal/must"
)

// fields are those of the linked messages that are read or answered. docs/serve.md names those with
// a minus, which are left out.
const fields = `envoy.service.ratelimit.v3.RateLimitRequest: domain descriptors hits_addend
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor: entries limit hits_addend is_negative_hits
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry: key value
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride: requests_per_unit unit unit_multiplier
envoy.service.ratelimit.v3.RateLimitResponse: overall_code statuses response_headers_to_add -request_headers_to_add -raw_body dynamic_metadata -quota
envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus: code current_limit limit_remaining duration_until_reset -quota
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit: name requests_per_unit unit unit_multiplier
envoy.config.core.v3.HeaderValue: key value -raw_value
envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports: domain bucket_quota_usages
envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports.BucketQuotaUsage: bucket_id time_elapsed num_requests_allowed num_requests_denied
envoy.service.rate_limit_quota.v3.BucketId: bucket
envoy.service.rate_limit_quota.v3.BucketId.BucketEntry: key value
envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse: bucket_action
envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction: bucket_id quota_assignment_action abandon_action
envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction: assignment_time_to_live rate_limit_strategy
envoy.type.v3.RateLimitStrategy: blanket_rule -requests_per_time_unit token_bucket
envoy.type.v3.TokenBucket: max_tokens tokens_per_fill fill_interval
envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.AbandonAction:
ratelimit.config.ratelimit.v3.RateLimitConfig: name domain descriptors
ratelimit.config.ratelimit.v3.RateLimitDescriptor: key value rate_limit descriptors shadow_mode detailed_metric quota_mode metadata
ratelimit.config.ratelimit.v3.RateLimitPolicy: unit requests_per_unit unlimited name replaces
ratelimit.config.ratelimit.v3.RateLimitReplace: name`

// TestEachFieldIsDecided: someone has decided on each field of the linked messages. A new version
// may bring one that a request relies on.
func TestEachFieldIsDecided(t *testing.T) {
	t.Parallel()
	page := must.OK(os.ReadFile("../../../../docs/serve.md"))(t)
	var met []string
	var walk func(m protoreflect.MessageDescriptor)
	walk = func(m protoreflect.MessageDescriptor) {
		name := string(m.FullName()) + ":"
		if strings.HasPrefix(name, "google.") || slices.ContainsFunc(met, func(line string) bool { return strings.HasPrefix(line, name) }) {
			return
		}
		i := len(met)
		met = append(met, name)
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			text, _, _ := strings.Cut(fields[max(0, strings.Index(fields, name)):], "\n")
			if left := " -" + string(f.Name()); strings.Contains(text+" ", left+" ") {
				if met[i] += left; !strings.Contains(string(page), "`"+string(f.Name())+"`") {
					t.Errorf("docs/serve.md does not name %s", f.FullName())
				}
			} else if met[i] += " " + string(f.Name()); f.Message() != nil {
				walk(f.Message())
			}
		}
	}
	for _, m := range []protoreflect.ProtoMessage{&pb.RateLimitRequest{}, &pb.RateLimitResponse{}, &quotapb.RateLimitQuotaUsageReports{}, &quotapb.RateLimitQuotaResponse{}, &rlsconf.RateLimitConfig{}} {
		walk(m.ProtoReflect().Descriptor())
	}
	if got := strings.Join(met, "\n"); got != fields {
		t.Errorf("the linked messages have these fields: use, refuse or leave out those that are new\n%s", got)
	}
}
