package dashboard

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/limiter"
)

const (
	maxKey   = 1024 // bytes
	maxRows  = 200
	maxBlock = 100 * 365 * 24 * time.Hour
)

// historyRequest is the body of POST /api/history.
type historyRequest struct {
	Policy string `json:"policy"` // empty: all
	Limit  int    `json:"limit"`  // 0: 50
}

func (in *historyRequest) check() error { return checkList(&in.Limit, in.Policy) }

// policyRequest is the body of POST /api/overrides.
type policyRequest struct {
	Policy string `json:"policy"`
}

func (in *policyRequest) check() error { return checkPolicy(in.Policy) }

// searchRequest is the body of POST /api/search.
type searchRequest struct {
	Prefix string `json:"prefix"`
}

func (in *searchRequest) check() error {
	if in.Prefix == "" {
		return api.BadField("prefix", "is empty: enter the beginning of a key")
	}
	return checkText("prefix", in.Prefix)
}

// Hours are the spans of time that the page's charts can have.
var Hours = []int{1, 6, 24, 168}

// DenialQuery selects denials. It is the body of POST /api/denials.
type DenialQuery struct {
	Ref       // an empty key: all
	Hours int `json:"hours"` // one of Hours; 0: 24
}

func (q *DenialQuery) check() error {
	if q.Hours = cmp.Or(q.Hours, 24); !slices.Contains(Hours, q.Hours) {
		return api.BadField("hours", "is %d: must be one of %v", q.Hours, Hours)
	}
	return checkText("key", q.Key)
}

// Slot returns the length of the slots of a query. The table has minutes, and ten minutes of
// what is more than an hour old.
func (q DenialQuery) Slot() time.Duration {
	switch {
	case q.Hours == 1:
		return time.Minute
	case q.Hours <= 24:
		return 10 * time.Minute
	}
	return time.Hour
}

// From returns the start of the first slot of a query at a time.
func (q DenialQuery) From(at time.Time) time.Time {
	return at.Truncate(q.Slot()).Add(q.Slot() - time.Duration(q.Hours)*time.Hour)
}

// Query selects keys. It is the body of POST /api/keys.
type Query struct {
	Order  inspect.Order `json:"order"`  // empty: share
	Policy string        `json:"policy"` // empty: all
	Prefix string        `json:"prefix"` // of the key as stored; empty: all
	Limit  int           `json:"limit"`  // rows at most; 0: 50
	Hours  int           `json:"hours"`  // in which denials are recent, one of Hours; 0: five minutes
}

func (q *Query) check() error {
	q.Order = cmp.Or(q.Order, inspect.ByShare)
	if q.Hours != 0 && !slices.Contains(Hours, q.Hours) {
		return api.BadField("hours", "is %d: must be one of %v", q.Hours, Hours)
	}
	if !slices.Contains(inspect.Orders, q.Order) {
		return api.BadField("order", "is %.40q: must be share, denials or recent", q.Order)
	}
	if err := checkText("prefix", q.Prefix); err != nil {
		return err
	}
	return checkList(&q.Limit, q.Policy)
}

// Ref names a key. It is the body of POST /api/key.
type Ref struct {
	Key string `json:"key"`
	// Stored says that Key is as the tables have it. They have the HMAC of a caller's
	// key if the limiters have a KeySecret; otherwise Stored makes no difference.
	Stored bool `json:"stored"`
}

func (r *Ref) check() error {
	if r.Key == "" {
		return api.BadField("key", "is empty: enter a key, such as alice")
	}
	return checkText("key", r.Key)
}

// whyRequest is the body of POST /api/why.
type whyRequest struct {
	Ref
	At string `json:"at"` // such as 2027-01-31T14:02:00Z; empty: now

	at time.Time
}

func (in *whyRequest) check() (err error) {
	if in.At != "" {
		if in.at, err = time.Parse(time.RFC3339, in.At); err != nil {
			return api.BadField("at", "is %.40q: must be a time such as 2027-01-31T14:02:00Z", in.At)
		}
		if in.at.Unix() < 0 {
			return api.BadField("at", "is %.40q: must be after 1970-01-01, in UTC", in.At)
		}
	}
	return in.Ref.check()
}

// Target names a key under a policy and an algorithm. It is the body of POST /api/unblock
// and /api/reset.
type Target struct {
	Ref
	Policy    string            `json:"policy"`
	Algorithm limiter.Algorithm `json:"algorithm"`
}

func (t *Target) check() error {
	if err := t.Ref.check(); err != nil {
		return err
	}
	if !slices.Contains(algorithm.All(), algorithm.Name(t.Algorithm)) {
		return api.BadField("algorithm", "is %.40q: see docs/algorithms.md", t.Algorithm)
	}
	return checkPolicy(t.Policy)
}

// blockRequest is the body of POST /api/block.
type blockRequest struct {
	Target
	For string `json:"for"` // such as "10m"

	lasts time.Duration
}

func (in *blockRequest) check() error {
	var err error
	if in.lasts, err = time.ParseDuration(in.For); err != nil {
		return api.BadField("for", "is %.40q: must be a duration such as 10m or 1h30m", in.For)
	}
	if in.lasts < time.Microsecond || in.lasts > maxBlock {
		return api.BadField("for", "is %s: must be from 1µs to 100 years", duration.Format(in.lasts))
	}
	return in.Target.check()
}

// checkList checks the length and the policy of a list, and sets the default length.
func checkList(limit *int, policy string) error {
	if *limit = cmp.Or(*limit, 50); *limit < 1 || *limit > maxRows {
		return api.BadField("limit", "is %d: must be from 1 to %d", *limit, maxRows)
	}
	if policy == "" {
		return nil
	}
	return checkPolicy(policy)
}

// checkText returns an error for a key or prefix that no row can have.
func checkText(field, text string) error {
	switch {
	case len(text) > maxKey:
		return api.BadField(field, "is %d bytes long: %d at most", len(text), maxKey)
	case !utf8.ValidString(text):
		return api.BadField(field, "is not valid UTF-8")
	case strings.Contains(text, "\x00"):
		return api.BadField(field, "has a zero byte, which PostgreSQL does not store")
	}
	return nil
}

// model validates names of policies.
var model = limiter.NewMemory(nil)

func checkPolicy(name string) error {
	p := limiter.Policy{Name: name, Algorithm: limiter.GCRA, Limit: 1, Period: time.Second}
	if _, err := model.Check(context.Background(), p, "k", 0); err != nil {
		problem := api.ProblemOf(err, "")
		problem.Field = "policy"
		return problem
	}
	return nil
}
