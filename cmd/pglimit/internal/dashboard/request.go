package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/site/api"
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

// change is a change of a policy or an override, field by field.
type change struct {
	Version int64     `json:"version"`
	At      time.Time `json:"at"`
	By      string    `json:"by"`
	Note    string    `json:"note,omitempty"`
	Policy  string    `json:"policy"`
	Key     string    `json:"key,omitempty"` // of an override, as stored
	Kind    string    `json:"kind"`          // added, changed or removed
	Fields  []field   `json:"fields"`        // those that differ
}

// field is a field before and after a change; empty if it is not set.
type field struct {
	Name   string `json:"name"`
	Before string `json:"before"`
	After  string `json:"after"`
}

func changesAnswer(changes []limiter.PolicyChange) any {
	list := make([]change, len(changes))
	for i, c := range changes {
		differ, was, is := policyfile.DifferPolicies(c.Before, c.After), c.Before != nil, c.After != nil
		if c.OverrideBefore != nil || c.OverrideAfter != nil {
			differ, was, is = policyfile.DifferOverrides(c.OverrideBefore, c.OverrideAfter), c.OverrideBefore != nil, c.OverrideAfter != nil
		}
		kind := "changed"
		if !was {
			kind = "added"
		} else if !is {
			kind = "removed"
		}
		fields := []field{}
		for _, f := range differ {
			if f.Name != "note" { // it is why
				fields = append(fields, field{f.Name, shown(f.Before), shown(f.After)})
			}
		}
		list[i] = change{c.Version, c.ChangedAt, c.ChangedBy, c.Note, c.Name, c.Key, kind, fields}
	}
	return map[string]any{"changes": list}
}

// shown returns a field's value as text; empty for none.
func shown(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return short(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

// duration returns a duration as people write it, such as 1h; empty for 0.
func duration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return short(d.String())
}

// short returns the text of a duration without units of zero at its end. Other texts
// do not end so.
func short(text string) string {
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
