package limiter

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
)

var logins = Policy{Name: "logins", Algorithm: Attempts, Limit: 3, Period: time.Hour, BlockFor: time.Minute, BlockMax: 10 * time.Minute}

// tries is a limiter in memory whose clock the test sets.
type tries struct {
	*testing.T
	l  *Limiter
	at time.Time
	p  Policy
}

func newTries(t *testing.T, p Policy) *tries {
	s := &tries{T: t, at: time.UnixMicro(1_800_000_000_000_000), p: p}
	s.l = NewMemory(&Config{Now: func() time.Time { return s.at }})
	return s
}

// begin begins an attempt that is to be allowed.
func (s *tries) begin(from string) Ticket {
	s.Helper()
	ticket, err := s.l.Attempt(s.Context(), s.p, "alice", AttemptOptions{From: from})
	if err != nil || !ticket.Result.Allowed || ticket.ID == "" || !ticket.ExpiresAt.Equal(s.at.Add(30*time.Second)) {
		s.Fatalf("got %+v, %v", ticket, err)
	}
	return ticket
}

// denied makes an attempt that is to be denied.
func (s *tries) denied(from string, reason Reason, retry time.Duration) {
	s.Helper()
	ticket, err := s.l.Attempt(s.Context(), s.p, "alice", AttemptOptions{From: from})
	if r := ticket.Result; err != nil || r.Allowed || r.Reason != reason || r.RetryAfter != retry || ticket.ID != "" || !ticket.ExpiresAt.IsZero() {
		s.Fatalf("got %+v, %v, want %s for %v", ticket, err, reason, retry)
	}
}

// fail reports a failure, which is to leave that count and that wait.
func (s *tries) fail(ticket Ticket, failures float64, wait time.Duration) {
	s.Helper()
	r, err := s.l.Failed(s.Context(), ticket.ID)
	if err != nil || !r.Allowed || r.Reason != "" || r.Level != failures || r.RetryAfter != wait {
		s.Fatalf("got %+v, %v, want %v failures and a wait of %v", r, err, failures, wait)
	}
}

// TestWaitsGrow: each failure from the limit on makes a longer wait, up to the bound. The count
// outlives the waits until the quiet time has passed. A success clears it.
func TestWaitsGrow(t *testing.T) {
	s := newTries(t, logins)
	for range 2 {
		s.fail(s.begin(""), s.count()+1, 0)
	}
	for i, minutes := range []time.Duration{1, 2, 4, 8, 10, 10} {
		s.fail(s.begin(""), float64(3+i), minutes*time.Minute)
		s.denied("", ReasonBlocked, minutes*time.Minute)
		s.at = s.at.Add(minutes*time.Minute - time.Microsecond)
		s.denied("", ReasonBlocked, time.Microsecond)
		s.at = s.at.Add(time.Microsecond)
	}
	s.at = s.at.Add(time.Hour - time.Microsecond)
	if s.count() != 8 {
		t.Errorf("%v failures before the quiet time has passed", s.count())
	}
	s.at = s.at.Add(time.Microsecond)
	s.fail(s.begin(""), 1, 0)
	s.fail(s.begin(""), 2, 0)
	if err := s.l.Succeeded(t.Context(), s.begin("").ID); err != nil || s.count() != 0 {
		t.Errorf("after a success: %v failures, %v", s.count(), err)
	}
}

// count is the number of failures that count.
func (s *tries) count() float64 {
	u, err := s.l.Usage(s.Context(), s.p, "alice")
	if err != nil || u.Spent != u.Result.Level {
		s.Fatalf("got %+v, %v", u, err)
	}
	return u.Result.Level
}

// TestTicketsExpire: a ticket that is not reported counts as failed at its end, and denies
// others until then.
func TestTicketsExpire(t *testing.T) {
	p := logins
	p.Limit = 1
	s := newTries(t, p)
	ticket := s.begin("")
	s.denied("", ReasonLimit, 90*time.Second) // it expires, and the key waits
	s.at = s.at.Add(30 * time.Second)
	s.denied("", ReasonBlocked, time.Minute)
	for _, report := range []func() error{
		func() error { return s.l.Succeeded(t.Context(), ticket.ID) },
		func() error { _, err := s.l.Failed(t.Context(), ticket.ID); return err },
	} {
		if err := report(); !errors.Is(err, ErrNoTicket) {
			t.Errorf("a report after the end: %v", err)
		}
	}
	s.at = s.at.Add(time.Minute)
	ticket = s.begin("")
	s.fail(ticket, 2, 2*time.Minute)
	if _, err := s.l.Failed(t.Context(), ticket.ID); !errors.Is(err, ErrNoTicket) || s.count() != 2 {
		t.Errorf("another report: %v, and %v failures", err, s.count())
	}
}

// TestSourcesAreApart: a stranger's failures make no place wait from which an attempt has
// succeeded, and its success clears nothing of the strangers'.
func TestSourcesAreApart(t *testing.T) {
	p := logins
	p.Limit = 1
	s := newTries(t, p)
	must.Succeed(t, s.l.Succeeded(t.Context(), s.begin("home").ID))
	s.fail(s.begin("afar"), 1, time.Minute)
	s.denied("afar", ReasonBlocked, time.Minute)
	s.denied("elsewhere", ReasonBlocked, time.Minute)
	s.denied("", ReasonBlocked, time.Minute)
	must.Succeed(t, s.l.Succeeded(t.Context(), s.begin("home").ID))
	s.denied("afar", ReasonBlocked, time.Minute)
	s.fail(s.begin("home"), 1, time.Minute)
	s.denied("home", ReasonBlocked, time.Minute)
	s.at = s.at.Add(90*24*time.Hour - time.Microsecond)
	s.begin("home")
	s.begin("afar") // not beside one from home if that were forgotten
	s.at = s.at.Add(24 * time.Hour)
	s.begin("home")
	s.denied("afar", ReasonLimit, 90*time.Second)
}

// TestAtOnce: no more than Burst attempts of a key are under way at once.
func TestAtOnce(t *testing.T) {
	p := logins
	p.Burst, p.Limit = 2, 10
	s := newTries(t, p)
	first, second := s.begin(""), s.begin("")
	s.at = s.at.Add(time.Second)
	s.denied("", ReasonLimit, 29*time.Second)
	must.Succeed(t, s.l.Succeeded(t.Context(), first.ID))
	s.begin("")
	s.fail(second, 1, 0)
	if u, err := s.l.Usage(t.Context(), p, "alice"); err != nil || u.Reservations != 1 || u.Result.Remaining != 9 || u.Result.ResetAfter != time.Hour+30*time.Second {
		t.Errorf("got %+v, %v", u, err)
	}
}

// TestAttemptsAndOperators: Block denies every source, Unblock lifts waits and keeps the count,
// and Reset forgets the key with its tickets.
func TestAttemptsAndOperators(t *testing.T) {
	p := logins
	p.Limit = 1
	s := newTries(t, p)
	must.Succeed(t, s.l.Succeeded(t.Context(), s.begin("home").ID))
	must.Succeed(t, s.l.Block(t.Context(), p, "alice", time.Hour))
	s.denied("home", ReasonBlocked, time.Hour)
	s.denied("afar", ReasonBlocked, time.Hour)
	must.Succeed(t, s.l.Unblock(t.Context(), p, "alice"))
	s.fail(s.begin("home"), 1, time.Minute)
	s.begin("afar")
	s.at = s.at.Add(31 * time.Second) // it has expired
	if err := s.l.Unblock(t.Context(), p, "alice"); err != nil || s.count() != 1 {
		t.Fatal(s.count(), err)
	}
	s.fail(s.begin("home"), 2, 2*time.Minute)
	ticket := s.begin("afar")
	must.Succeed(t, s.l.Reset(t.Context(), p, "alice"))
	if _, err := s.l.Failed(t.Context(), ticket.ID); !errors.Is(err, ErrNoTicket) || s.count() != 0 {
		t.Errorf("after a Reset: %v, and %v failures", err, s.count())
	}
	s.begin("home")
	s.denied("afar", ReasonLimit, 90*time.Second) // home is forgotten
}

// TestShadowAttempts: a shadow policy denies nothing, and the ticket of what it would have
// denied counts nothing.
func TestShadowAttempts(t *testing.T) {
	p := logins
	p.Limit, p.Shadow = 1, true
	s := newTries(t, p)
	s.fail(s.begin(""), 1, time.Minute)
	ticket := s.begin("")
	if r := ticket.Result; !r.Shadowed || r.Reason != ReasonBlocked || !strings.HasPrefix(ticket.ID, "uncounted:") {
		t.Errorf("got %+v", ticket)
	}
	if r, err := s.l.Failed(t.Context(), ticket.ID); err != nil || r.Source != SourceSkipped || s.count() != 1 {
		t.Errorf("got %+v, %v", r, err)
	}
	if err := s.l.Succeeded(t.Context(), ticket.ID); err != nil || s.count() != 1 {
		t.Error(err)
	}
}

// TestAttemptsRefuse: what has no meaning is an error that names it.
func TestAttemptsRefuse(t *testing.T) {
	t.Parallel()
	l, ctx := NewMemory(nil), t.Context()
	bucket := PerHour("p", 3)
	for want, err := range map[string]error{
		"allow on attempts: use Attempt, then Succeeded or Failed": second(l.Allow(ctx, logins, "k")),
		"allow_all on attempts":     second(l.AllowAll(ctx, logins.Request("k", 1))),
		"wait on attempts":          second(l.DoWait(ctx, logins.Request("k", 1))),
		"reserve on attempts":       second(l.Reserve(ctx, logins.Request("k", 1), time.Hour)),
		"charge on attempts":        second(l.Charge(ctx, logins, "k", 1)),
		"refund on attempts":        second(l.Refund(ctx, logins, "k", 1)),
		"undo on attempts":          second(l.Undo(ctx, logins, "k", Result{})),
		"attempt on token_bucket":   second(l.Attempt(ctx, bucket, "k", AttemptOptions{})),
		"TTL 999ms":                 second(l.Attempt(ctx, logins, "k", AttemptOptions{TTL: 999 * time.Millisecond})),
		"From \"a\\x00b\"":          second(l.Attempt(ctx, logins, "k", AttemptOptions{From: "a\x00b"})),
		"is longer than 1024 bytes": second(l.Attempt(ctx, logins, "k", AttemptOptions{From: strings.Repeat("a", 1025)})),
		"From \"\\xff\"":            second(l.Attempt(ctx, logins, "k", AttemptOptions{From: "\xff"})),
		"cost 2":                    second(l.Check(ctx, logins, "k", 2)),
		"ticket \"nonsense\"":       second(l.Failed(ctx, "nonsense")),
		"ticket \"token_bucket:":    l.Succeeded(ctx, "token_bucket:AAAAAAAAAAAAAAAAAAAAAAAAAA:p:aw"),
		"no such attempt is under":  l.Succeeded(ctx, "attempts:AAAAAAAAAAAAAAAAAAAAAAAAAA:p:aw"),
		"reservation \"attempts:":   l.Cancel(ctx, "attempts:AAAAAAAAAAAAAAAAAAAAAAAAAA:p:aw"),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for field, change := range map[string]func(*Policy){
		"Limit 2.5":         func(p *Policy) { p.Limit = 2.5 },
		"Burst 101":         func(p *Policy) { p.Burst = 101 },
		"Burst 0.5":         func(p *Policy) { p.Burst = 0.5 },
		"BlockFor 0s":       func(p *Policy) { p.BlockFor = 0 },
		"BlockGrowth 0.5":   func(p *Policy) { p.BlockGrowth = 0.5 },
		"BlockMax 59s":      func(p *Policy) { p.BlockMax = 59 * time.Second },
		"BlockMax 0s":       func(p *Policy) { p.BlockMax, p.BlockFor = 0, 2*time.Hour },
		"OnError fail_open": func(p *Policy) { p.OnError = FailOpen },
		"Lease 0.05":        func(p *Policy) { p.Lease = 0.05 },
		"Tick 1s":           func(p *Policy) { p.Tick = time.Second },
		"Period 0s":         func(p *Policy) { p.Period = 0 },
		"BlockGrowth 3":     func(p *Policy) { *p = bucket; p.BlockGrowth = 3 },
		"BlockMax 1h":       func(p *Policy) { *p = bucket; p.BlockMax = time.Hour },
	} {
		p := logins
		change(&p)
		var bad *PolicyError
		if err := p.Validate(); !errors.As(err, &bad) || !strings.Contains(err.Error(), field) {
			t.Errorf("got %v, want %q", err, field)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestTicketJSON(t *testing.T) {
	t.Parallel()
	s := newTries(t, logins)
	for _, want := range []string{`{"id":"attempts:`, `{"id":null,"expires_at":null,"result":{"allowed":false`} {
		ticket, err := s.l.Attempt(t.Context(), logins, "alice", AttemptOptions{})
		if text, bad := json.Marshal(ticket); err != nil || bad != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("got %s, %v, %v, want %s", text, err, bad, want)
		}
	}
}
