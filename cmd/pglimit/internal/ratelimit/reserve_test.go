package ratelimit

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit/kuadrantpb"
	"github.com/pglimit/pglimit/limiter"
)

// kuadrantCalls calls a server as a gateway does. Its clock is that of the server.
type kuadrantCalls struct {
	*testing.T
	*Server
	now time.Time
	ids map[string]string // of reservations, by the tests' names
}

func newKuadrantCalls(t *testing.T, config string, options Options) *kuadrantCalls {
	k := &kuadrantCalls{T: t, now: start, ids: map[string]string{}}
	options.Logger, options.Now = slog.New(slog.DiscardHandler), func() time.Time { return k.now }
	k.Server = NewServer(limiter.NewMemory(&limiter.Config{Now: options.Now}), mustConfig(t, config), options)
	return k
}

// do makes one call, and returns its answer: the code of a Reserve, and whether a Commit released a
// reservation; then, of a CheckRateLimit with the same descriptors, what is left. A call is
// "reserve NAME AMOUNT DESCRIPTOR…", "commit NAME AMOUNT DESCRIPTOR…", "check DESCRIPTOR…" or
// "wait DURATION".
func (k *kuadrantCalls) do(call string) string {
	k.Helper()
	words := strings.Fields(call)
	var amount uint64
	var answer string
	switch words[0] {
	case "wait":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			k.Fatal(err)
		}
		k.now = k.now.Add(d)
		return ""
	case "check":
		words = words[1:]
	default:
		if _, err := fmt.Sscan(words[2], &amount); err != nil {
			k.Fatal(err)
		}
		d := requestOf(k, words[3:]...).GetDescriptors()
		if words[0] == "reserve" {
			r, err := k.reserve(k.Context(), &kuadrantpb.ReserveRequest{Domain: "d", Descriptors: d, Amount: amount})
			if err != nil {
				return status.Code(err).String()
			}
			answer = short(r.GetCode())
			if k.ids[words[1]] = r.GetReservationId(); r.GetReservationId() == "" {
				answer += " none"
			}
		} else {
			r, err := k.commit(k.Context(), &kuadrantpb.CommitRequest{Domain: "d", Descriptors: d, ReservationId: k.ids[words[1]], ActualAmount: amount})
			if err != nil {
				return status.Code(err).String()
			}
			answer = fmt.Sprint(r.GetReservationReleased())
		}
		words, answer = words[3:], answer+", "
	}
	r, err := k.checkRateLimit(k.Context(), requestOf(k, words...))
	if err != nil {
		k.Fatal(err)
	}
	return answer + brief(r)
}

const tokens = `
domain: d
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: model, rate_limit: {unit: hour, requests_per_unit: 150}}
- {key: free, rate_limit: {unlimited: true}}
- {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 50}}
- {key: q1, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 10}}
- {key: q2, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 20}}
- {key: bucket, rate_limit: {unit: hour, requests_per_unit: 3600, pglimit: {algorithm: token_bucket, burst: 10}}}
- {key: each, rate_limit: {unit: hour, requests_per_unit: 100, pglimit: {counting: each}}}
- {key: tenant, rate_limit: {unit: hour, requests_per_unit: 100, pglimit: {floors: {key: class, values: {batch: 0.4}}}}}
- {key: open, rate_limit: {unit: hour, requests_per_unit: 100, pglimit: {on_error: fail_open}}}
- {key: local, rate_limit: {unit: hour, requests_per_unit: 100, pglimit: {on_error: fail_local}}}
`

// TestReserve: a Reserve holds its estimate under all limits or under none. A Commit counts the
// units that it reports instead of the estimate.
func TestReserve(t *testing.T) {
	t.Parallel()
	shadow := Options{Shadow: true}
	for name, c := range map[string]struct {
		options Options
		steps   []string // a call and its answer, one after the other
	}{
		"one limit": {steps: []string{
			"reserve r 60 user=a", "OK, OK OK:40/100",
			"reserve s 41 user=a", "OVER none, OK OK:40/100",
			"commit r 20 user=a", "true, OK OK:80/100", // the rest goes back
			"commit r 20 user=a", "true, OK OK:80/100", // again: nothing
			"commit r 21 user=a", "FailedPrecondition",
			"reserve t 50 user=a", "OK, OK OK:30/100",
			"commit t 90 user=a", "true, OVER OVER:0/100", // more is counted
		}},
		"all or nothing": {steps: []string{
			"reserve r 100 user=a model=m", "OK, OVER OVER:0/100 OK:50/150",
			"reserve s 60 user=b model=m", "OVER none, OK OK:100/100 OK:50/150",
			"reserve s 60 model=m user=b", "OVER none, OK OK:50/150 OK:100/100",
			"reserve s 50 user=a model=m", "OVER none, OVER OVER:0/100 OK:50/150",
			"commit r 10 user=a model=m", "true, OK OK:90/100 OK:140/150",
			"commit r 10 user=a", "InvalidArgument", // of two descriptors
			"reserve s 30 user=a user=a", "OK, OK OK:30/100 OK:30/100",
			"commit s 0 user=a user=a", "true, OK OK:90/100 OK:90/100",
		}},
		"nothing to hold": {steps: []string{
			"reserve r 9 free= other=", "OK none, OK OK:4294967295 OK:0",
			"commit r 9 free= other=", "false, OK OK:4294967295 OK:0",
			"reserve r 9 none=", "OVER none, OVER OVER:0/0",
			"commit r 9 none=", "false, OVER OVER:0/0",
			"reserve r 0 user=a", "OK none, OK OK:100/100",
			"commit r 100 user=a", "false, OVER OVER:0/100", // as a Report
			"reserve r 0 user=a", "OVER none, OVER OVER:0/100",
			"commit r 0 user=b", "false, OK OK:100/100",
			"reserve r 9 free= user=b", "OK, OK OK:4294967295 OK:91/100",
			"commit r 5 free= user=b", "true, OK OK:4294967295 OK:95/100",
		}},
		"more than the limit": {steps: []string{
			"reserve r 5000 user=a", "OK, OVER OVER:0/100",
			"reserve s 5000 user=a", "OVER none, OVER OVER:0/100",
			"commit r 250 user=a", "true, OVER OVER:0/100",
			"reserve r 18446744073709551615 bucket=b", "OK, OVER OVER:0/3600",
			"commit r 4 bucket=b", "true, OK OK:6/3600",
			"reserve s 5000 bucket=b", "OVER none, OK OK:6/3600",
		}},
		"an expired reservation": {steps: []string{
			"reserve r 100 user=a", "OK, OVER OVER:0/100",
			"wait 59s", "",
			"reserve s 1 user=a", "OVER none, OVER OVER:0/100",
			"wait 2s", "",
			"reserve s 60 user=a", "OK, OK OK:40/100",
			"commit r 30 user=a", "false, OK OK:10/100", // it is counted
			"commit r 30 user=a", "true, OK OK:10/100", // again: nothing
			"wait 49h", "",
			"commit s 7 user=a", "false, OK OK:93/100", // forgotten: as a Report
		}},
		"shadow_mode": {steps: []string{
			"reserve r 40 shadow= user=a", "OK, OK OK:10/50 OK:60/100",
			"reserve s 40 shadow= user=a", "OK, OK OK:10/50 OK:20/100",
			"reserve x 40 shadow= user=a", "OVER none, OK OK:10/50 OK:20/100",
			"commit s 5 shadow= user=a", "true, OK OK:5/50 OK:55/100",
			"commit r 5 shadow= user=a", "true, OK OK:40/50 OK:90/100",
		}},
		"quota_mode": {steps: []string{
			"reserve r 10 q1= q2=", "OK, OK OVER:0/10 OK:10/20",
			"reserve s 10 q1= q2=", "OK, OVER OVER:0/10 OVER:0/20",
			"reserve x 1 q1= q2= user=a", "OVER none, OVER OVER:0/10 OVER:0/20 OK:100/100",
			"commit s 1 q1= q2=", "true, OK OVER:0/10 OK:9/20",
		}},
		"a shadow": {options: shadow, steps: []string{
			"reserve r 60 user=a model=m", "OK, OK OK:40/100 OK:90/150",
			"reserve s 60 user=a model=m", "OK, OK OK:40/100 OK:30/150",
			"commit s 10 user=a model=m", "true, OK OK:30/100 OK:80/150",
		}},
		"counting each": {steps: []string{
			"reserve r 60 each= user=a", "OK, OK OK:40/100 OK:40/100",
			"reserve s 60 each= user=a", "OVER none, OK OK:40/100 OK:40/100",
		}},
		"a floor": {steps: []string{
			"reserve r 60 tenant=a,class=batch", "OK, OVER OVER:40/100",
			"reserve s 1 tenant=a,class=batch", "OVER none, OVER OVER:40/100",
			"reserve s 1 tenant=a", "OK, OK OK:39/100",
			"commit r 10 tenant=a,class=batch", "true, OK OK:89/100",
			"reserve x 99 tenant=b,class=batch", "OK, OVER OVER:40/100",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKuadrantCalls(t, tokens, c.options)
			for pair := range slices.Chunk(c.steps, 2) {
				if got := k.do(pair[0]); got != pair[1] {
					t.Errorf("%s: %s, want %s", pair[0], got, pair[1])
				}
			}
		})
	}
}

// TestReserveMetrics: a denied estimate is over the limit, and of others the commits count.
func TestReserveMetrics(t *testing.T) {
	t.Parallel()
	k := newKuadrantCalls(t, tokens, Options{})
	for _, call := range []string{
		"reserve r 60 user=a", "reserve s 60 user=a", "commit r 90 user=a", "commit r 90 user=a", "reserve u 5 user=a", "commit u 30 user=a", "commit none 7 user=b",
	} {
		k.do(call)
	}
	var text strings.Builder
	_ = k.WriteMetrics(&text) // never fails
	for name, want := range map[string]int{"total_hits": 60 + 90 + 30 + 7, "over_limit": 20 + 20, "within_limit": 90 + 7, "near_limit": 20 + 10 + 10} {
		if line := fmt.Sprintf("ratelimit_service_rate_limit_%s{domain=\"d\",key1=\"user\"} %d\n", name, want); !strings.Contains(text.String(), line) {
			t.Errorf("no line %q in\n%s", line, &text)
		}
	}
}

// TestReserveErrors: bad requests name the field; nothing is reserved for them.
func TestReserveErrors(t *testing.T) {
	t.Parallel()
	k := newKuadrantCalls(t, tokens, Options{})
	user := requestOf(t, "user=a").GetDescriptors()
	for field, c := range map[string]struct {
		ttl *durationpb.Duration
		of  []string
		id  string
	}{
		"ttl":            {ttl: &durationpb.Duration{Seconds: -1}},
		"ttl: ":          {ttl: &durationpb.Duration{Nanos: 2e9}},
		"descriptors: ":  {of: []string{}},
		"descriptors[1]": {of: []string{"user=a", "user=a+5"}},
		"descriptors[0]": {of: []string{"user=a+-"}},
		"reservation":    {id: "made up"},
		"reservation_id": {id: ","},
	} {
		d := user
		if c.of != nil {
			d = requestOf(t, c.of...).GetDescriptors()
		}
		var errs []error
		if c.id == "" {
			_, err := k.reserve(t.Context(), &kuadrantpb.ReserveRequest{Domain: "d", Descriptors: d, Amount: 5, Ttl: c.ttl})
			errs = append(errs, err)
		}
		if c.ttl == nil { // which a Commit has not
			_, err := k.commit(t.Context(), &kuadrantpb.CommitRequest{Domain: "d", Descriptors: d, ActualAmount: 5, ReservationId: c.id})
			errs = append(errs, err)
		}
		for _, err := range errs {
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: error %v", field, err)
			}
		}
	}
	for ttl, want := range map[time.Duration]time.Duration{0: time.Second, 1500*time.Millisecond + 1: 1500 * time.Millisecond, 1000 * time.Hour: time.Hour} {
		if got, err := ttlOf(durationpb.New(ttl)); err != nil || got != want {
			t.Errorf("a ttl of %v is %v, error %v; want %v", ttl, got, err, want)
		}
	}
	if got := k.do("check user=a"); got != "OK OK:100/100" {
		t.Errorf("after bad requests: %s", got)
	}
}

// flaky is a limiter whose Reserves and Settles fail from the first of a policy on. It notes the
// names of policies that were reserved.
type flaky struct {
	Limiter
	from string
	seen *[]string
}

func (f flaky) Reserve(ctx context.Context, r limiter.Request, ttl time.Duration) (limiter.Reservation, error) {
	*f.seen = append(*f.seen, strings.Split(r.Policy.Name, ".")[2])
	if strings.Contains(r.Policy.Name, f.from) {
		return limiter.Reservation{}, fmt.Errorf("%w: connect to host=db.internal", limiter.ErrUnavailable)
	}
	return f.Limiter.Reserve(ctx, r, ttl)
}

func (f flaky) Settle(ctx context.Context, id string, units float64) (limiter.Result, error) {
	if strings.Contains(id, f.from) {
		return limiter.Result{}, limiter.ErrUnavailable
	}
	return f.Limiter.Settle(ctx, id, units)
}

// TestReserveWithoutADecision: a Reserve that fails under one limit gives back the units that it
// holds under the others. All Reserves take limits in the same order. If a Commit fails under one
// limit, its repetition counts the units there, and nowhere twice.
func TestReserveWithoutADecision(t *testing.T) {
	t.Parallel()
	var seen []string
	k := newKuadrantCalls(t, tokens, Options{})
	whole := k.limiter
	k.limiter = flaky{whole, "user", &seen}
	for pair := range slices.Chunk([]string{
		"reserve r 60 user=a model=m", "Unavailable",
		"check user=a model=m", "OK OK:100/100 OK:150/150",
		"reserve r 60 user=a none=", "OVER none, OVER OK:100/100 OVER:0/0", // that denial needs no database
	}, 2) {
		if got := k.do(pair[0]); got != pair[1] {
			t.Errorf("%s: %s, want %s", pair[0], got, pair[1])
		}
	}
	if want := []string{"model", "user"}; !slices.Equal(seen, want) {
		t.Errorf("reserved in the order %q, want %q", seen, want)
	}
	k.limiter = whole
	if got, want := k.do("reserve r 60 model=m user=a"), "OK, OK OK:90/150 OK:40/100"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, want := range []string{"Unavailable", "true, OK OK:140/150 OK:90/100"} {
		if k.limiter = whole; want == "Unavailable" {
			k.limiter = flaky{whole, "user", &seen}
		}
		if got := k.do("commit r 10 model=m user=a"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	k.limiter = leaving{whole, leave}
	_, err := k.reserve(ctx, &kuadrantpb.ReserveRequest{Domain: "d", Descriptors: requestOf(t, "model=n", "user=n").GetDescriptors(), Amount: 50})
	if k.limiter = whole; status.Code(err) != codes.Canceled {
		t.Errorf("a caller that left: %v", err)
	}
	if got, want := k.do("check model=n user=n"), "OK OK:150/150 OK:100/100"; got != want {
		t.Errorf("after a caller left: %s, want %s", got, want)
	}
}

// leaving is a limiter whose caller leaves after the first Reserve.
type leaving struct {
	Limiter
	leave func()
}

func (l leaving) Reserve(ctx context.Context, r limiter.Request, ttl time.Duration) (limiter.Reservation, error) {
	if ctx.Err() != nil {
		return limiter.Reservation{}, ctx.Err()
	}
	defer l.leave()
	return l.Limiter.Reserve(ctx, r, ttl)
}
