package serve

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit/kuadrantpb"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// gateway calls Kuadrant's service for the domain llm/chat.
type gateway struct {
	*testing.T
	conn *grpc.ClientConn
}

func descriptors(keys ...string) (all []*rlcommon.RateLimitDescriptor) {
	for _, text := range keys {
		key, value, _ := strings.Cut(text, "=")
		all = append(all, &rlcommon.RateLimitDescriptor{Entries: []*rlcommon.RateLimitDescriptor_Entry{{Key: key, Value: value}}})
	}
	return all
}

func (g gateway) call(method string, request, response any) error {
	return g.conn.Invoke(g.Context(), "/kuadrant.service.ratelimit.v1.RateLimitService/"+method, request, response)
}

// reserve returns the answer to a Reserve: the code, or that of its error.
func (g gateway) reserve(amount uint64, ttl time.Duration, keys ...string) (code, id string) {
	var r kuadrantpb.ReserveResponse
	if err := g.call("Reserve", &kuadrantpb.ReserveRequest{Domain: "llm/chat", Descriptors: descriptors(keys...), Amount: amount, Ttl: durationpb.New(ttl)}, &r); err != nil {
		return status.Code(err).String(), ""
	}
	return r.GetCode().String(), r.GetReservationId()
}

// commit returns the answer to a Commit: whether it released the reservation, or the code of its
// error.
func (g gateway) commit(id string, amount uint64, keys ...string) string {
	var r kuadrantpb.CommitResponse
	if err := g.call("Commit", &kuadrantpb.CommitRequest{Domain: "llm/chat", Descriptors: descriptors(keys...), ReservationId: id, ActualAmount: amount}, &r); err != nil {
		return status.Code(err).String()
	}
	return fmt.Sprint(r.GetReservationReleased())
}

// left checks the answer to a CheckRateLimit: the code, and what is left under each limit.
func (g gateway) left(after, want string, keys ...string) {
	g.Helper()
	var r pb.RateLimitResponse
	err := g.call("CheckRateLimit", &pb.RateLimitRequest{Domain: "llm/chat", Descriptors: descriptors(keys...)}, &r)
	got := r.GetOverallCode().String()
	for _, st := range r.GetStatuses() {
		got += fmt.Sprint(" ", st.GetLimitRemaining())
	}
	if err != nil || got != want {
		g.Errorf("after %s: %s, error %v; want %s", after, got, err, want)
	}
}

func (g gateway) want(what, got, want string) {
	g.Helper()
	if got != want {
		g.Errorf("%s: %s, want %s", what, got, want)
	}
}

// TestKuadrant: a gateway's client reserves and commits, checks and reports, while the database is
// there, away and there again.
func TestKuadrant(t *testing.T) {
	t.Parallel()
	wire := testworld.NewWire(t, testworld.NewDatabase(t))
	cmd, at, ended := startRatelimit(t, wire.URL, `
domain: llm/chat
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 100}}
- {key: model, rate_limit: {unit: year, requests_per_unit: 150}}
- {key: open, rate_limit: {unit: year, requests_per_unit: 100, pglimit: {on_error: fail_open}}}
`)
	g := gateway{t, must.OK(grpc.NewClient(at[0], grpc.WithTransportCredentials(insecure.NewCredentials())))(t)}

	g.reserveAndCommit()

	g.underTwoLimits()

	var reported pb.RateLimitResponse
	must.Succeed(t, g.call("Report", &pb.RateLimitRequest{Domain: "llm/chat", Descriptors: descriptors("user=r"), HitsAddend: 150}, &reported))
	g.want("a report above the limit", reported.GetOverallCode().String(), "OK")
	g.left("reporting 150", "OVER_LIMIT 0", "user=r")
	g.want("a commit without a reservation", g.commit("", 30, "user=s"), "false")
	g.left("that", "OK 70", "user=s")

	g.estimate()

	code, id := g.reserve(100, time.Second, "user=e")
	g.want("a short reservation", code, "OK")
	var next string
	testworld.Eventually(t, "the reservation expires", func(context.Context) (bool, error) {
		code, next = g.reserve(60, time.Hour, "user=e")
		return code == "OK", nil
	})
	g.want("a late commit", g.commit(id, 30, "user=e"), "false")
	g.left("a late commit of 30", "OK 10", "user=e")

	code, id = g.reserve(40, time.Hour, "user=o")
	g.want("a reservation", code, "OK")
	wire.Cut()
	code, _ = g.reserve(5, time.Hour, "user=o")
	g.want("a reservation without a database", code, codes.Unavailable.String())
	code, none := g.reserve(5, time.Hour, "open=o")
	g.want("one under a limit that fails open", code+none, "OK")
	code, none = g.reserve(5, time.Hour, "open=o", "user=o")
	g.want("one under both", code+none, codes.Unavailable.String())
	g.want("a commit without a database", g.commit(id, 15, "user=o"), codes.Unavailable.String())
	wire.Away.Store(false)
	testworld.Eventually(t, "a repeated commit counts", func(context.Context) (bool, error) { return g.commit(id, 15, "user=o") == "true", nil })
	g.left("that", "OK 85", "user=o")
	g.want("a commit of what failed open", g.commit(none, 7, "open=o"), "false")
	g.left("that", "OK 93", "open=o")
	g.want("giving all back", g.commit(next, 0, "user=e"), "true")
	g.left("that", "OK 70", "user=e")

	must.Succeed(t, g.conn.Close())
	terminate(cmd.Process)()
	log := ended()
	if err := cmd.Wait(); err != nil || strings.Contains(log, "panic") {
		t.Errorf("the program ended with %v:\n%s", err, log)
	}
}

// estimate: an estimate above the limit holds all of it until its commit.
func (g gateway) estimate() {
	code, id := g.reserve(5000, time.Hour, "user=g")
	g.want("an estimate above the limit", code, "OK")
	code, none := g.reserve(5000, time.Hour, "user=g")
	g.want("another", code+none, "OVER_LIMIT")
	g.want("its commit", g.commit(id, 40, "user=g"), "true")
	code, none = g.reserve(5000, time.Hour, "user=g")
	g.want("one more", code+none, "OVER_LIMIT")
	g.left("committing 40 of the whole limit", "OK 60", "user=g")
}

// reserveAndCommit: a commit counts once, and gives back or takes what differs from its
// reservation.
func (g gateway) reserveAndCommit() {
	code, id := g.reserve(60, time.Hour, "user=a")
	g.want("a reservation", code, "OK")
	code, none := g.reserve(60, time.Hour, "user=a")
	g.want("one that does not fit", code+none, "OVER_LIMIT")
	g.left("reserving 60", "OK 40", "user=a")
	g.left("a check", "OK 40", "user=a")
	g.want("a commit of less", g.commit(id, 20, "user=a"), "true")
	g.left("committing 20 of 60", "OK 80", "user=a")
	g.want("the same commit", g.commit(id, 20, "user=a"), "true")
	g.want("another commit", g.commit(id, 21, "user=a"), codes.FailedPrecondition.String())
	g.left("further commits", "OK 80", "user=a")
	code, id = g.reserve(50, time.Hour, "user=a")
	g.want("a reservation", code, "OK")
	g.want("a commit of more", g.commit(id, 75, "user=a"), "true")
	g.left("committing 75 of 50", "OK 5", "user=a")
}

// underTwoLimits: a reservation under two limits has units of both, or of none.
func (g gateway) underTwoLimits() {
	code, id := g.reserve(100, time.Hour, "user=b", "model=m")
	g.want("a reservation under two limits", code, "OK")
	code, none := g.reserve(60, time.Hour, "user=c", "model=m")
	g.want("one that does not fit for the model", code+none, "OVER_LIMIT")
	code, none = g.reserve(30, time.Hour, "user=b", "model=m")
	g.want("one that does not fit for the user", code+none, "OVER_LIMIT")
	g.left("reserving under two limits", "OVER_LIMIT 0 100 50", "user=b", "user=c", "model=m")
	g.want("a commit under two limits", g.commit(id, 10, "user=b", "model=m"), "true")
	g.left("committing under two limits", "OK 90 140", "user=b", "model=m")
}
