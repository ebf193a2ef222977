package dashboard

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/internal/site/api"
	"github.com/pglimit/pglimit/limiter"
)

const (
	maxKey     = 1024 // bytes
	maxRows    = 200
	maxHistory = 200
	maxBlock   = 100 * 365 * 24 * time.Hour
)

// historyRequest is the body of POST /api/history.
type historyRequest struct {
	Policy string `json:"policy"` // empty: all
	Limit  int    `json:"limit"`  // 0: 50
}

func (in *historyRequest) check() error {
	in.Limit = cmp.Or(in.Limit, 50)
	if in.Limit < 1 || in.Limit > maxHistory {
		return api.BadField("limit", "is %d: must be from 1 to %d", in.Limit, maxHistory)
	}
	return checkPolicy(in.Policy, true)
}

// keysRequest is the body of POST /api/keys.
type keysRequest struct {
	Order  Order  `json:"order"`  // empty: share
	Policy string `json:"policy"` // empty: all
	Prefix string `json:"prefix"`
	Limit  int    `json:"limit"` // 0: 50
}

func (in *keysRequest) check() error {
	in.Limit, in.Order = cmp.Or(in.Limit, 50), cmp.Or(in.Order, ByShare)
	switch {
	case !slices.Contains([]Order{ByShare, ByDenials, ByRecent}, in.Order):
		return api.BadField("order", "is %.40q: must be share, denials or recent", in.Order)
	case in.Limit < 1 || in.Limit > maxRows:
		return api.BadField("limit", "is %d: must be from 1 to %d", in.Limit, maxRows)
	}
	if err := checkText("prefix", in.Prefix); err != nil {
		return err
	}
	return checkPolicy(in.Policy, true)
}

// keyRequest is the body of POST /api/key.
type keyRequest Ref

func (in *keyRequest) check() error { return checkKey(in.Key) }

// targetRequest is the body of POST /api/unblock and /api/reset.
type targetRequest struct {
	Ref
	Policy    string            `json:"policy"`
	Algorithm limiter.Algorithm `json:"algorithm"`
}

func (in *targetRequest) check() error {
	if err := checkKey(in.Key); err != nil {
		return err
	}
	if !slices.Contains(limiter.Algorithms(), in.Algorithm) {
		return api.BadField("algorithm", "is %.40q: see docs/algorithms.md", in.Algorithm)
	}
	return checkPolicy(in.Policy, false)
}

func (in *targetRequest) target() Target { return Target{in.Ref, in.Policy, in.Algorithm} }

// blockRequest is the body of POST /api/block.
type blockRequest struct {
	targetRequest
	For string `json:"for"` // such as "10m"

	lasts time.Duration
}

func (in *blockRequest) check() error {
	var err error
	if in.lasts, err = time.ParseDuration(in.For); err != nil {
		return api.BadField("for", "is %.40q: must be a duration such as 10m or 1h30m", in.For)
	}
	if in.lasts < time.Microsecond || in.lasts > maxBlock {
		return api.BadField("for", "is %v: must be from 1µs to 100 years", in.lasts)
	}
	return in.targetRequest.check()
}

func checkKey(key string) error {
	if key == "" {
		return api.BadField("key", "is empty: enter a key, such as alice")
	}
	return checkText("key", key)
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

func checkPolicy(name string, orEmpty bool) error {
	if name == "" && orEmpty {
		return nil
	}
	p := limiter.Policy{Name: name, Algorithm: limiter.GCRA, Limit: 1, Period: time.Second}
	if _, err := model.Check(context.Background(), p, "k", 0); err != nil {
		problem := api.ProblemOf(err, "")
		problem.Field = "policy"
		return problem
	}
	return nil
}
