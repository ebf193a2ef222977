package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func suggest(t *testing.T, log *Log, periods ...time.Duration) *Suggestions {
	t.Helper()
	s, err := Suggest(t.Context(), log, "api", periods, nil)
	if err != nil || len(s.Suggestions) != len(periods) {
		t.Fatalf("%v: %+v", err, s)
	}
	return s
}

// steady returns a log of keys clients that send per requests at once each minute, for ten
// minutes.
func steady(t *testing.T, keys, per int) *Log {
	var text strings.Builder
	for minute := range 10 {
		for k := range keys {
			for range per {
				text.WriteString(line(fmt.Sprintf("k%d", k), start.Add(time.Duration(minute)*time.Minute+time.Duration(k%60)*time.Second).Format("02/Jan/2006:15:04:05 -0700")))
			}
		}
	}
	return read(t, text.String())
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	s := suggest(t, steady(t, 100, 8), time.Second, time.Minute, 5*time.Minute)
	for i, want := range []struct {
		demand, backlog, limit, burst float64
	}{
		{8, 8, 10, 10},
		{8, 8, 10, 10},  // every minute again, exactly a minute later
		{40, 8, 50, 10}, // eight are gone after 48 s
	} {
		got := s.Suggestions[i]
		same := func(q Quantiles, n float64) bool { return q == Quantiles{n, n, n, n} }
		if !same(got.Demand, want.demand) || !same(got.Backlog, want.backlog) || got.Policy.Limit != want.limit || got.Policy.Burst != want.burst || got.Denied != 0 || got.KeysDenied != 0 {
			t.Errorf("%v: %+v, want %+v", got.Policy.Period, got, want)
		}
	}
	if s.Requests != 8000 || s.Keys != 100 || s.BadLines != 0 || s.First != start || s.Headroom != 1.25 {
		t.Errorf("%+v", s)
	}
	last := s.Suggestions[2]
	if last.Flags != "--policy api-5m --algorithm token_bucket --limit 50 --period 5m --burst 10" {
		t.Errorf("%s", last.Flags)
	}
	if one := suggest(t, steady(t, 1, 1), time.Minute).Suggestions[0].Policy.Name; one != "api" {
		t.Errorf("the only suggestion's name is %s", one)
	}
}

// TestSuggestOutlier: one key of two thousand sends far more. The suggestion does not
// follow it, and says how many of its requests are denied.
func TestSuggestOutlier(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for k := range 2000 {
		text.WriteString(line(fmt.Sprintf("k%d", k), start.Format("02/Jan/2006:15:04:05 -0700")))
	}
	text.WriteString(strings.ReplaceAll(at(make([]int, 500)...), "192.0.2.1", "k7"))
	log := read(t, text.String())
	got := suggest(t, log, time.Minute).Suggestions[0]
	if (got.Demand != Quantiles{1, 1, 1, 501}) || got.Policy.Limit != 2 || got.Policy.Burst != 2 || got.Denied != 499 || got.KeysDenied != 1 {
		t.Errorf("%+v", got)
	}
	report := run(t, log, Candidate{got.Policy, 1}).Candidates[0]
	if report.Denied != got.Denied || report.KeysDenied != got.KeysDenied {
		t.Errorf("%+v, but the replay %+v", got, report)
	}
}

// TestSuggestAdmits: a policy with the limit and the burst of the maximum denies nothing,
// for any log.
func TestSuggestAdmits(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		log := &Log{}
		for k := range 1 + random.IntN(20) {
			log.keys = append(log.keys, fmt.Sprint("k", k))
		}
		now := start.UnixMicro()
		for range 1 + random.IntN(300) {
			now += int64(random.ExpFloat64() * float64(random.IntN(5)) * 3e6)
			log.events = append(log.events, event{now, int32(random.IntN(random.IntN(len(log.keys)) + 1))})
		}
		for _, s := range suggest(t, log, time.Second, 7*time.Second, time.Minute).Suggestions {
			// Fewer than a thousand keys: the 99.9th percentile is the maximum.
			if s.Denied != 0 || s.Policy.Burst > s.Policy.Limit || s.Demand.P999 != s.Demand.Max || s.Demand.P50 > s.Demand.P99 || s.Backlog.Max > s.Demand.Max {
				t.Errorf("seed %d: %+v", seed, s)
			}
			exact := s.Policy
			exact.Limit, exact.Burst = s.Demand.Max, s.Demand.Max
			if denied := run(t, log, Candidate{exact, 1}).Candidates[0].Denied; denied != 0 {
				t.Errorf("seed %d: %d denied by %+v", seed, denied, exact)
			}
		}
	}
}

func TestRoundUp(t *testing.T) {
	t.Parallel()
	for n, want := range map[float64]float64{
		0: 1, 0.3: 1, 1: 1, 1.25: 2, 2.5: 3, 9.01: 10, 10: 10, 10.1: 15, 12.5: 15, 15: 15, 15.1: 20, 95.1: 100, 100: 100, 100.1: 150,
		137.5: 150, 1372: 1500, 1500: 1500, 99999: 100000, 1.1 * 10: 15, 1.25 * 79.9: 100, 123456789: 150000000,
	} {
		if got := RoundUp(n); got != want {
			t.Errorf("%v: got %v, want %v", n, got, want)
		}
	}
}

func TestLogPeriods(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int]string{0: "[1s]", 59: "[1s]", 60: "[1s 1m0s]", 3600: "[1s 1m0s 1h0m0s]", 86399: "[1s 1m0s 1h0m0s]", 90000: "[1s 1m0s 1h0m0s 24h0m0s]"} {
		if got := fmt.Sprint(read(t, at(0, seconds)).Periods()); got != want {
			t.Errorf("%d s: got %s, want %s", seconds, got, want)
		}
	}
}

func TestSuggestErrors(t *testing.T) {
	t.Parallel()
	log := read(t, at(0, 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var field *limiter.PolicyError
	if _, err := Suggest(t.Context(), log, "UPPER", log.Periods(), nil); !errors.As(err, &field) || field.Field != "Name" {
		t.Errorf("got %v", err)
	}
	if _, err := Suggest(t.Context(), log, "api", []time.Duration{0}, nil); !errors.As(err, &field) || field.Field != "Period" {
		t.Errorf("got %v", err)
	}
	if _, err := Suggest(t.Context(), &Log{}, "api", log.Periods(), nil); !errors.As(err, new(*NotALogError)) {
		t.Errorf("got %v", err)
	}
	if _, err := Suggest(ctx, log, "api", log.Periods(), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if text, err := json.Marshal(suggest(t, log)); err != nil || !strings.Contains(string(text), `"suggestions":[]`) {
		t.Errorf("%s, %v", text, err)
	}
}
