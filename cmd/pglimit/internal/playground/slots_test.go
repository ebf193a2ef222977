package playground

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// standing returns the numbers of a key's jobs that hold slots, and of those that wait.
func (h *Hub) standing(key string) (hold, wait []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, j := range h.jobs[key] {
		if j.EndsAt > 0 {
			hold = append(hold, j.Number)
		} else {
			wait = append(wait, j.Number)
		}
	}
	return hold, wait
}

// postTo posts a body to s, without a network.
func postTo(s *Server, path, body string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "http://localhost"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	s.ServeHTTP(w, r)
	return w
}

// TestJobs: at most three jobs hold slots, and keep them as long as they run. The slot of a job that
// finishes is free at once, that of a job that dies after its time to live. A reset ends all jobs.
func TestJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		defer s.Close(t.Context())
		expect := func(what string, hold, wait []int) {
			t.Helper()
			synctest.Wait()
			if h, w := s.hub.standing("k"); !slices.Equal(h, hold) || !slices.Equal(w, wait) {
				t.Errorf("%s: %v hold slots and %v wait, want %v and %v", what, h, w, hold, wait)
			}
			if r := must.OK(s.hub.Limiter.Check(t.Context(), slots, "k", 0))(t); int(r.Level) != len(hold) {
				t.Errorf("%s: %v slots are held, want %d", what, r.Level, len(hold))
			}
		}
		for range 5 {
			must.Succeed(t, s.hub.start("k"))
			synctest.Wait()
		}
		expect("five jobs", []int{1, 2, 3}, []int{4, 5})
		time.Sleep(time.Hour)
		expect("an hour later", []int{1, 2, 3}, []int{4, 5})
		end := func(number string) {
			t.Helper()
			if answer := postTo(s, "/api/jobs", `{"key":"k","number":`+number+`}`); answer.Code != http.StatusOK {
				t.Errorf("%s: %d %s", number, answer.Code, answer.Body)
			}
		}
		end(`1`)
		expect("a job finished", []int{2, 3, 4}, []int{5})
		end(`2,"die":true`)
		time.Sleep(slots.Period - slots.Period/3 - time.Second)
		expect("a job died", []int{2, 3, 4}, []int{5})
		time.Sleep(slots.Period/3 + 3*time.Second)
		expect("its slot has ended", []int{3, 4, 5}, nil)
		must.Succeed(t, s.hub.Reset(t.Context(), "k"))
		expect("a reset", nil, nil)
	})
}

// TestJobsErrors: what cannot be done to a job is an error that names the field.
func TestJobsErrors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ExpectProblem(t, http.MethodPost, "/api/jobs", `{"key":"k","number":7}`, 400, "number", "", "number is 7: no such job")
	s.ExpectProblem(t, http.MethodPost, "/api/jobs", `{"number":7}`, 400, "key", "", "key is empty")
	s.ExpectProblem(t, http.MethodPost, "/api/grant", `{"key":"k","units":-1}`, 400, "units", "balance", "units -1: must be from 1e-9 to 2^53")
	for range maxJobs {
		s.Post(t, "/api/jobs", `{"key":"k"}`, &struct{}{})
	}
	s.ExpectProblem(t, http.MethodPost, "/api/jobs", `{"key":"k"}`, 503, "", "", "9 jobs of this key run or wait")
}

// TestGrant: the levels of a key have its lots in the order in which they are spent, and a lot ends
// when the grant says.
func TestGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		defer s.Close(t.Context())
		read := func() (u limiter.Usage, held bool) {
			t.Helper()
			seen, held, err := readLevels(t.Context(), s.hub.Limiter, "k", s.hub.usedWith("k"))
			must.Succeed(t, err)
			return *seen.Levels[limiter.Balance].Usage, held
		}
		for _, lot := range []string{`"units":50`, `"units":20,"seconds":15,"priority":-1,"source":"gift"`} {
			if answer := postTo(s, "/api/grant", `{"key":"k",`+lot+`}`); answer.Code != http.StatusOK {
				t.Fatalf("%s: %d %s", lot, answer.Code, answer.Body)
			}
		}
		if u, held := read(); len(u.Lots) != 2 || u.Lots[0].Source != "gift" || !held {
			t.Errorf("two grants: %s", must.OK(json.Marshal(u))(t))
		}
		time.Sleep(15 * time.Second)
		if u, held := read(); len(u.Lots) != 1 || u.Expired != 20 || held {
			t.Errorf("after the end of the gift: held is %v, %s", held, must.OK(json.Marshal(u))(t))
		}
		must.Succeed(t, s.hub.Reset(t.Context(), "k"))
		if u := must.OK(s.hub.Limiter.Usage(t.Context(), balance, "k"))(t); u.Granted != 0 {
			t.Errorf("after a reset %v are granted", u.Granted)
		}
	})
}
