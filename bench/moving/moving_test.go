// Package moving compiles and runs the Go code of docs/moving.md, and compares the limiters
// from which it leads away with pglimit's.
package moving

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	ulule "github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/repository"
	"github.com/pglimit/pglimit/limiter"
)

// TestPage: each block of Go on docs/moving.md is in this package, where it compiles against the
// versions that the page names.
func TestPage(t *testing.T) {
	root := must.OK(repository.Root())(t)
	read := func(path ...string) string {
		t.Helper()
		text := must.OK(os.ReadFile(filepath.Join(path...)))(t)
		return string(text)
	}
	page := read(root, "docs", "moving.md")
	indents := regexp.MustCompile(`(?m)^\t+`)
	code := indents.ReplaceAllString(read("code_test.go")+read("ulule_test.go"), "")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(page, -1)
	for _, block := range blocks {
		if !strings.Contains(code, indents.ReplaceAllString(block[1], "")) {
			t.Errorf("this package lacks\n%s", block[1])
		}
	}
	if len(blocks) != 8 {
		t.Errorf("%d blocks, want 8", len(blocks))
	}
	versions := read(root, "bench", "go.mod")
	for title, module := range map[string]string{
		"redis_rate": "github.com/go-redis/redis_rate/v10", "golang.org/x/time/rate": "golang.org/x/time", "ulule/limiter": "github.com/ulule/limiter/v3",
	} {
		m := regexp.MustCompile(`\n## ` + title + `\n\nVersion (v\S+)\.\n`).FindStringSubmatch(page)
		if m == nil || !strings.Contains(versions, "\t"+module+" "+m[1]+"\n") {
			t.Errorf("%s: the page names version %q, bench/go.mod another", title, m)
		}
	}
}

// TestRate: Allow of rate.Limiter and of a TokenBucket answer alike, and Wait of both lets calls
// pass at the same times.
func TestRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		l := limiter.NewMemory(nil)
		p := limiter.PerSecond("p", 8)
		p.Burst = 5
		theirs, denied := rate.NewLimiter(8, 5), 0
		for i := range 2000 {
			time.Sleep(time.Duration(random.IntN(16)) * time.Second / 64) // both compute with such times exactly
			n := 1 + random.IntN(6)
			want := theirs.AllowN(time.Now(), n)
			r, err := l.AllowN(t.Context(), p, "k", float64(n))
			if err != nil || r.Allowed != want || r.Level != 5-theirs.Tokens() {
				t.Fatalf("request %d of %d units: %+v, %v; rate.Limiter: %v, %v left", i, n, r, err, want, theirs.Tokens())
			}
			if !want {
				denied++
			}
		}
		if denied < 200 || denied > 1800 {
			t.Errorf("%d requests of 2000 were denied", denied)
		}
		times := func(run func([]func()) error) (at []time.Duration) {
			began := time.Now()
			if err := run(slices.Repeat([]func(){func() { at = append(at, time.Since(began)) }}, 5)); err != nil {
				t.Error(err)
			}
			return at
		}
		want := times(func(calls []func()) error { return rateBefore(t.Context(), calls) })
		got := times(func(calls []func()) error { return rateAfter(t.Context(), l, calls) })
		if !slices.Equal(got, want) || got[4] != 400*time.Millisecond {
			t.Errorf("calls pass at %v, rate.Limiter's at %v", got, want)
		}
	})
}

// TestUlule: a store of ulule/limiter and a FixedWindow answer requests of one unit alike, also
// as middleware. A denied request of several units is counted only there.
func TestUlule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		newStore := func() ulule.Store { return memory.NewStoreWithOptions(ulule.StoreOptions{}) } // without a cleaner
		l := limiter.NewMemory(nil)
		p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 5, Period: time.Second}
		theirs, denied := ulule.New(newStore(), ulule.Rate{Limit: 5, Period: time.Second}), 0
		for i := range 2000 {
			time.Sleep(time.Duration(random.IntN(4)) * 70 * time.Millisecond)
			key := fmt.Sprint(random.IntN(2))
			want := must.OK(theirs.Get(t.Context(), key))(t)
			r, err := l.Allow(t.Context(), p, key)
			if err != nil || r.Allowed == want.Reached || r.Remaining != float64(want.Remaining) || time.Now().Add(r.ResetAfter).Unix() != want.Reset {
				t.Fatalf("request %d: %+v, %v; ulule/limiter: %+v", i, r, err, want)
			}
			if want.Reached {
				denied++
			}
		}
		if denied < 200 || denied > 1800 {
			t.Errorf("%d requests of 2000 were denied", denied)
		}
		for _, n := range []int64{3, 4} {
			must.OK(theirs.Increment(t.Context(), "several", n))(t)
			must.OK(l.AllowN(t.Context(), p, "several", float64(n)))(t)
		}
		was, err := theirs.Peek(t.Context(), "several")
		is, ourErr := l.Check(t.Context(), p, "several", 0)
		if err != nil || ourErr != nil || was.Remaining != 0 || is.Remaining != 2 {
			t.Errorf("%+v, %v; ulule/limiter: %+v, %v", is, ourErr, was, err)
		}

		mux := http.NewServeMux()
		mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
		before, err := ululeBefore(newStore(), mux)
		after, ourErr := ululeAfter(l, mux)
		if err != nil || ourErr != nil {
			t.Fatal(err, ourErr)
		}
		for i := range 7 {
			was, is := httptest.NewRecorder(), httptest.NewRecorder()
			before.ServeHTTP(was, httptest.NewRequest("GET", "/", nil))
			after.ServeHTTP(is, httptest.NewRequest("GET", "/", nil))
			for _, field := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining"} {
				if is.Code != was.Code || is.Header().Get(field) != was.Header().Get(field) || is.Header().Get(field) == "" {
					t.Errorf("request %d: %d %v; ulule/limiter: %d %v", i, is.Code, is.Header(), was.Code, was.Header())
				}
			}
		}
		if r, err := tableAfter(t.Context(), l, "k"); err != nil || r.Remaining != 999 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// TestRedisRate: redis_rate, over a Redis in memory, and GCRA answer alike, also after a key's
// count was taken over. Remaining of a denial and a cost above the burst are different.
func TestRedisRate(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	now := time.Unix(1_800_000_000, 0)
	server.SetTime(now)
	theirs := redis_rate.NewLimiter(client)
	l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }})
	limit := redis_rate.Limit{Rate: 8, Period: time.Second, Burst: 5}
	p := limiter.Policy{Name: "api", Algorithm: limiter.GCRA, Limit: 8, Period: time.Second, Burst: 5}
	random, denied := rand.New(rand.NewPCG(1, 2)), 0
	compare := func(p limiter.Policy, times int) {
		t.Helper()
		for i := range times {
			now = now.Add(time.Duration(random.IntN(16)) * time.Second / 64)
			server.SetTime(now)
			n := 1 + random.IntN(5)
			want := must.OK(theirs.AllowN(t.Context(), "k", limit, n))(t)
			r, err := l.AllowN(t.Context(), p, "k", float64(n))
			if err != nil || r.Granted != float64(want.Allowed) || r.Allowed && (r.Remaining != float64(want.Remaining) || want.RetryAfter != -1) || !r.Allowed && (want.Remaining != 0 || r.RetryAfter != want.RetryAfter) {
				t.Fatalf("request %d of %d units: %+v, %v; redis_rate: %+v", i, n, r, err, want)
			}
			if !r.Allowed {
				denied++
			}
		}
	}
	compare(p, 1000)
	if denied < 100 || denied > 900 {
		t.Errorf("%d requests of 1000 were denied", denied)
	}
	now = now.Add(time.Second) // all has leaked
	server.SetTime(now)
	must.OK(theirs.AllowN(t.Context(), "k", limit, 3))(t)
	fresh := p
	fresh.Name = "fresh"
	must.Succeed(t, redisRateTakeOver(t.Context(), theirs, limit, l, fresh, "k"))
	compare(fresh, 100)

	want, err := theirs.AllowN(t.Context(), "large", limit, 6)
	r, ourErr := l.AllowN(t.Context(), p, "large", 6)
	if err != nil || ourErr != nil || want.RetryAfter == limiter.Never || r.RetryAfter != limiter.Never {
		t.Errorf("%+v, %v; redis_rate: %+v, %v", r, ourErr, want, err)
	}
	for i := range 22 {
		now = now.Add(time.Microsecond) // theirs rounds
		server.SetTime(now)
		was, is := redisRateBefore(t.Context(), theirs, "user"), redisRateAfter(t.Context(), l, "user")
		if (is == nil) != (i < 20) || (was == nil) != (is == nil) {
			t.Errorf("request %d: %v; redis_rate: %v", i, is, was)
		}
	}
}
