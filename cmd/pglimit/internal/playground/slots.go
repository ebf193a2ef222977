package playground

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/limiter"
)

// slots and balance are the policies of the cards that show places and prepaid units.
var (
	slots   = limiter.Policy{Name: PolicyName, Algorithm: limiter.Concurrency, Limit: 3, Period: 10 * time.Second}
	balance = limiter.Policy{Name: PolicyName, Algorithm: limiter.Balance, Overdraft: 20}
)

// maxJobs is the largest number of a key's jobs.
const maxJobs = 9

// job waits for a slot, and holds it until it finishes, or dies and its slot ends.
type job struct {
	Number int     `json:"number"`
	EndsAt float64 `json:"ends_at"` // of the slot, in Unix milliseconds; 0: it waits
	Dead   bool    `json:"dead"`    // it renews its slot no more

	finish context.CancelFunc
	die    chan struct{}
}

// jobs answers POST /api/jobs. A number of 0 starts a job, another finishes that job or, with
// die, lets it die.
func (s *Server) jobs(w http.ResponseWriter, r *http.Request) (any, error) {
	var in struct {
		Key    string `json:"key"`
		Number int    `json:"number"`
		Die    bool   `json:"die"`
	}
	err := api.Read(w, r, &in)
	if err = cmp.Or(err, parseKey(in.Key), s.hub.Admit(in.Key)); err != nil {
		return nil, err
	}
	if in.Number == 0 {
		return struct{}{}, s.hub.start(in.Key)
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	at := slices.IndexFunc(s.hub.jobs[in.Key], func(j *job) bool { return j.Number == in.Number })
	switch {
	case at < 0 || s.hub.jobs[in.Key][at].Dead:
		return nil, api.BadField("number", "is %d: no such job runs or waits", in.Number)
	case in.Die && s.hub.jobs[in.Key][at].EndsAt > 0:
		s.hub.jobs[in.Key][at].Dead = true
		close(s.hub.jobs[in.Key][at].die)
	default:
		s.hub.jobs[in.Key][at].finish()
	}
	return struct{}{}, nil
}

// start starts a job.
func (h *Hub) start(key string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return api.Unavailable("the playground is ending")
	}
	if len(h.jobs[key]) >= maxJobs {
		return api.Unavailable(fmt.Sprintf("%d jobs of this key run or wait: finish one of them", maxJobs))
	}
	ctx, finish := context.WithCancel(context.Background())
	h.started++
	j := &job{Number: h.started, finish: finish, die: make(chan struct{})}
	h.jobs[key] = append(h.jobs[key], j)
	h.use(key, policies{slots.Algorithm: slots})
	h.running.Go(func() {
		err := h.work(ctx, key, j)
		if ctx.Err() == nil && err != nil {
			h.publish(key, encodeEvent("problem", api.ProblemOf(err, "")))
		}
		finish()
		h.change(key, func() { h.jobs[key] = slices.DeleteFunc(h.jobs[key], func(other *job) bool { return other == j }) })
	})
	return nil
}

// work is the life of a job.
func (h *Hub) work(ctx context.Context, key string, j *job) error {
	h.change(key, func() {})
	slot, err := h.Limiter.AcquireWait(ctx, slots.Request(key, 1), 0)
	if err != nil {
		return err
	}
	for renewed := time.Now(); ; renewed = time.Now() {
		h.change(key, func() { j.EndsAt = millis(slot.ExpiresAt) })
		select {
		case <-time.After(slots.Period / 3):
		case <-j.die: // its slot ends by itself
			h.change(key, func() {})
			select {
			case <-time.After(time.Until(renewed.Add(slots.Period))):
			case <-ctx.Done():
			}
			return nil
		case <-ctx.Done():
			return h.Limiter.Release(context.WithoutCancel(ctx), slot.ID)
		}
		if slot.ExpiresAt, err = h.Limiter.Renew(ctx, slot.ID, 0); err != nil {
			return err
		}
	}
}

// change changes a key's jobs, and sends them to its streams.
func (h *Hub) change(key string, how func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	how()
	h.send(key, h.encodeJobs(key))
}

// encodeJobs returns a key's jobs as an event. The hub must be locked.
func (h *Hub) encodeJobs(key string) []byte {
	return encodeEvent("jobs", map[string][]*job{"jobs": append([]*job{}, h.jobs[key]...)})
}

// finishAll finishes a key's jobs. The hub must be locked.
func (h *Hub) finishAll(key string) {
	for _, j := range h.jobs[key] {
		j.finish()
	}
}
