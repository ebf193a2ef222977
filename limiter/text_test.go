package limiter

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/pglimit/pglimit/internal/must"
)

func TestPolicyTextErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{"name": "a", "perod": "1s"}`:     "perod",
		`{"name": "a", "Limit": 1}`:        `unknown field "Limit"`,
		`{"limit": 1, "limit": 2}`:         `field "limit" is there twice`,
		`{"name": "a", "period": "1 day"}`: `Period "1 day"`,
		`{"name": "a", "period": 60}`:      "period",
		`{"name": "a", "on_error": "no"}`:  `OnError "no"`,
		`{"name": "a", "durability": "s"}`: `Durability "s": must be durable or relaxed`,
		`{"name": "a", "block_for": "1y"}`: `BlockFor "1y"`,
	} {
		before := Policy{Name: "before"}
		p := before
		if err := json.Unmarshal([]byte(text), &p); err == nil || !strings.Contains(err.Error(), want) || p != before {
			t.Errorf("%s: got %v, %+v", text, err, p)
		}
	}
}

func TestResultJSON(t *testing.T) {
	data, err := json.Marshal(Result{RetryAfter: Never, ResetAfter: 1500 * time.Millisecond, Reason: ReasonLimit, Source: SourceMemory, Shadowed: true})
	want := `{"allowed":false,"granted":0,"limit":0,"burst":0,"level":0,"remaining":0,"retry_after_s":null,"reset_after_s":1.5,"delay_s":0,"full":false,"reason":"limit","source":"memory","shadowed":true}`
	if err != nil || string(data) != want {
		t.Errorf("got %s, %v", data, err)
	}
	if data, _ := json.Marshal(Result{}); strings.Contains(string(data), "shadowed") {
		t.Errorf("got %s", data)
	}
}

// TestErrNeverPassesADenial: not even the Results beside an error, which no request denied.
func TestErrNeverPassesADenial(t *testing.T) {
	first, second := Result{Reason: ReasonLimit}, Result{Reason: ReasonBlocked}
	var denied *DeniedError
	for i, err := range []error{
		Result{}.Err(), Results{DeniedBy: -1}.Err(), second.Err(), Results{PerRequest: []Result{first, second}, DeniedBy: 1}.Err(),
	} {
		if !errors.As(err, &denied) || i > 1 && denied.Result != second || len(denied.PerRequest) != 2*(i/3) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if err := errors.Join((Result{Allowed: true}).Err(), (Results{Allowed: true, DeniedBy: -1}).Err()); err != nil {
		t.Error(err)
	}
}

// TestRemainingOfWholeCostsIsWhole: what has leaked in part is not shown, and rounding takes
// no whole unit. With a cost or burst that is not whole Remaining is exact.
func TestRemainingOfWholeCostsIsWhole(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	l := NewMemory(&Config{Now: func() time.Time { return now }})
	take := func(p Policy, key string, n float64) float64 {
		t.Helper()
		r := must.OK(l.AllowN(t.Context(), p, key, n))(t)
		return r.Remaining
	}
	p := PerHour("p", 10_000)
	take(p, "k", 1000)
	now = now.Add(time.Millisecond)
	if got := take(p, "k", 10); got != 8990 {
		t.Errorf("%v", got)
	}
	if got := take(p, "k", 0.5); got == math.Floor(got) {
		t.Errorf("of half a unit %v", got)
	}
	p.Burst = 10
	for range 30 { // their sum is 3.0000000000000013
		take(p, "tenths", 0.1)
	}
	if got := take(p, "tenths", 1); got != 6 {
		t.Errorf("after thirty tenths %v", got)
	}
	p.Burst = 2.5
	if got := take(p, "half", 1); got != 1.5 {
		t.Errorf("of a burst of 2.5 %v", got)
	}
}

func TestNewWithoutPool(t *testing.T) {
	if _, err := New(nil, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if _, err := NewSQL(nil, nil); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "db nil: open one") {
		t.Errorf("database/sql: got %v", err)
	}
}

// TestPolicyTextWritten: durations may be in days, and durations and numbers are written as
// people write them. A float64 of 1e6 in YAML would be 1e+06, which many read as a text.
func TestPolicyTextWritten(t *testing.T) {
	var p Policy
	err := json.Unmarshal([]byte(`{"name":"a","algorithm":"gcra","limit":1,"period":"30d"}`), &p)
	if text, _ := json.Marshal(p); err != nil || p.Period != 720*time.Hour || !strings.Contains(string(text), `"period":"30d"`) {
		t.Errorf("%+v, %v, written as %s", p, err, text)
	}
	for v, want := range map[float64]any{1e6: int64(1e6), 2.5: 2.5, 1 << 53: int64(1 << 53)} {
		p.Limit = v
		form, err := p.MarshalYAML()
		if got := reflect.ValueOf(form).FieldByName("Limit").Interface(); err != nil || got != want {
			t.Errorf("%g: got %T %v, %v", v, got, got, err)
		}
	}
	if err := (Policy{Limit: 1, Period: time.Minute, Name: "p", Algorithm: GCRA, Burst: 1e17}).Validate(); err == nil || !strings.Contains(err.Error(), "Burst 100000000000000000: ") {
		t.Errorf("got %v", err)
	}
}

func TestCalendarValidate(t *testing.T) {
	t.Parallel()
	good := Policy{Name: "p", Algorithm: FixedWindow, Limit: 1, Calendar: Month, TimeZone: "Europe/Vienna"}
	for _, zone := range []string{"", "UTC", "Etc/GMT+5", "US/Pacific", "Europe/Vienna", "America/Argentina/Buenos_Aires"} {
		p := good
		p.TimeZone = zone
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", zone, err)
		}
	}
	for want, change := range map[string]func(*Policy){
		`Calendar "term": must be hour, day, week, month, qu`: func(p *Policy) { p.Calendar = "term" },
		`Anchor "31": must be a date such as 2024-01-31, or`:  func(p *Policy) { p.Anchor = "31" },
		`Anchor "2023-02-29": must be a date such as 2024-01`: func(p *Policy) { p.Anchor = "2023-02-29" },
		`Anchor "2024-01-31": requires a Calendar`:            func(p *Policy) { p.Calendar, p.TimeZone, p.Anchor = "", "", "2024-01-31" },
		`Calendar "month": is for fixed_window only`:          func(p *Policy) { p.Algorithm = SlidingWindowCounter },
		`Period 1h: must be 0 with Calendar`:                  func(p *Policy) { p.Period = time.Hour },
		`Period -1ns: must be 0 with Calendar`:                func(p *Policy) { p.Period = -1 },
		`Aligned true: must be false with Calendar`:           func(p *Policy) { p.Aligned = true },
		`TimeZone "Europe/Wien": is not known here`:           func(p *Policy) { p.TimeZone = "Europe/Wien" },
		`TimeZone "../passwd": is not a name of the IANA`:     func(p *Policy) { p.TimeZone = "../passwd" },
		`TimeZone "Europe//Vienna": is not a name of the`:     func(p *Policy) { p.TimeZone = "Europe//Vienna" },
		`TimeZone "right/Europe/Vienna": is not a name`:       func(p *Policy) { p.TimeZone = "right/Europe/Vienna" },
		`TimeZone "europe/VIENNA": is spelled Europe/Vienna`:  func(p *Policy) { p.TimeZone = "europe/VIENNA" },
		`TimeZone "Local": differs from machine to machine`:   func(p *Policy) { p.TimeZone = "Local" },
		`TimeZone "Europe/Vienna": requires a Calendar`:       func(p *Policy) { p.Calendar, p.Period = "", time.Hour },
		`Period 0s: must be positive`:                         func(p *Policy) { p.Calendar, p.TimeZone = "", "" },
		`Burst 2: fixed_window has no burst apart from Limit`: func(p *Policy) { p.Burst = 2 },
		`BlockFor 1ns: must be whole microseconds`:            func(p *Policy) { p.BlockFor = 1 },
	} {
		p := good
		change(&p)
		err := p.Validate()
		var pe *PolicyError
		if !errors.As(err, &pe) || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestCalendarText: JSON omits the period of a policy with a calendar.
func TestCalendarText(t *testing.T) {
	t.Parallel()
	p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 1, Calendar: Week, TimeZone: "Europe/Vienna", Anchor: "2024-01-31T09:30"}
	data, err := json.Marshal(p)
	want := `{"name":"p","algorithm":"fixed_window","limit":1,"calendar":"week","time_zone":"Europe/Vienna","anchor":"2024-01-31T09:30"}`
	if err != nil || string(data) != want {
		t.Errorf("got %s, %v; want %s", data, err, want)
	}
}

// TestRoundingOfFractionalCosts holds the bound of docs/guarantees.md: in a burst of 1e9,
// floats add 1.00000005 as 1.
func TestRoundingOfFractionalCosts(t *testing.T) {
	const burst, free, cost = 1e9, 2000, 1.00000005
	for _, a := range Algorithms() {
		l := NewMemory(&Config{Now: func() time.Time { return time.Unix(1e9, 0) }})
		p := Policy{Name: "p", Algorithm: a, Limit: burst, Period: time.Hour}
		r, err := l.AllowN(t.Context(), p, "k", burst-free)
		passed := -1.0
		for ; r.Allowed && err == nil; passed++ {
			r, err = l.AllowN(t.Context(), p, "k", cost)
		}
		if over := passed*cost - free; err != nil || over > 1e-6+passed*1e-15*burst {
			t.Errorf("%s: %v requests passed, %v units too many (%v)", a, passed, over, err)
		}
	}
}
