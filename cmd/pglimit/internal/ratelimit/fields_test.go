package ratelimit

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// fields are those of the messages, without google.protobuf. "used": it is read, or set in an
// answer. "left out": docs/serve.md names it, or the message is only in such a field.
const fields = `
used RateLimitRequest: domain descriptors hits_addend
used RateLimitDescriptor: entries limit hits_addend is_negative_hits
used RateLimitDescriptor.Entry: key value
used RateLimitDescriptor.RateLimitOverride: requests_per_unit unit unit_multiplier
used RateLimitResponse: overall_code statuses response_headers_to_add dynamic_metadata
left out RateLimitResponse: request_headers_to_add raw_body quota
used RateLimitResponse.DescriptorStatus: code current_limit limit_remaining duration_until_reset
left out RateLimitResponse.DescriptorStatus: quota
used RateLimitResponse.RateLimit: name requests_per_unit unit unit_multiplier
left out RateLimitResponse.Quota: requests valid_until id
used HeaderValue: key value
left out HeaderValue: raw_value
used RateLimitQuotaUsageReports: domain bucket_quota_usages
used RateLimitQuotaUsageReports.BucketQuotaUsage: bucket_id time_elapsed num_requests_allowed num_requests_denied
used BucketId: bucket
used BucketId.BucketEntry: key value
used RateLimitQuotaResponse: bucket_action
used RateLimitQuotaResponse.BucketAction: bucket_id quota_assignment_action abandon_action
used RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction: assignment_time_to_live rate_limit_strategy
used RateLimitStrategy: blanket_rule token_bucket
left out RateLimitStrategy: requests_per_time_unit
left out RateLimitStrategy.RequestsPerTimeUnit: requests_per_time_unit time_unit
used TokenBucket: max_tokens tokens_per_fill fill_interval
used config.RateLimitConfig: name domain descriptors
used config.RateLimitDescriptor: key value rate_limit descriptors shadow_mode detailed_metric quota_mode metadata
used config.RateLimitPolicy: unit requests_per_unit unlimited name replaces
used config.RateLimitReplace: name`

// TestEachFieldIsDecided: each field of the linked messages is used, or docs/serve.md says that it
// is not. A new version of the messages may bring one that a request relies on.
func TestEachFieldIsDecided(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	known, met := map[string]bool{}, map[string]bool{} // by message and field
	for line := range strings.Lines(strings.TrimSpace(fields)) {
		head, names, _ := strings.Cut(strings.TrimSpace(line), ": ")
		message, leftOut := strings.CutPrefix(strings.TrimPrefix(head, "used "), "left out ")
		for name := range strings.FieldsSeq(names) {
			known[message+"."+name] = true
			if leftOut && !strings.Contains(message, ".") && !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("%s.%s is not among the differences of docs/serve.md", message, name)
			}
		}
	}
	seen := map[protoreflect.FullName]bool{}
	var walk func(m protoreflect.MessageDescriptor)
	walk = func(m protoreflect.MessageDescriptor) {
		of := string(m.ParentFile().Package())
		if of == "google.protobuf" || seen[m.FullName()] {
			return
		}
		seen[m.FullName()] = true
		name := strings.TrimPrefix(string(m.FullName()), of+".")
		if strings.HasPrefix(of, "ratelimit.config.") {
			name = "config." + name
		}
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			id := name + "." + string(f.Name())
			if met[id] = true; !known[id] {
				t.Errorf("%s of the linked messages is new: use it, or refuse it, or name it in docs/serve.md; and list it here", f.FullName())
			}
			if f.Message() != nil {
				walk(f.Message())
			}
		}
	}
	for _, m := range []proto.Message{&pb.RateLimitRequest{}, &pb.RateLimitResponse{}, &quotapb.RateLimitQuotaUsageReports{}, &quotapb.RateLimitQuotaResponse{}, &rlsconf.RateLimitConfig{}} {
		walk(m.ProtoReflect().Descriptor())
	}
	for _, id := range slices.Sorted(maps.Keys(known)) {
		if !met[id] {
			t.Errorf("%s is listed, and no message has it", id)
		}
	}
}
