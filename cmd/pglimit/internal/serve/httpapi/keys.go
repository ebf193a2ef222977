package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// change returns the handler of a method that changes a key.
func change(do func(l *limiter.Limiter, ctx context.Context, p limiter.Policy, key string) error) func(*Handler, http.ResponseWriter, *http.Request) error {
	return func(h *Handler, w http.ResponseWriter, r *http.Request) error {
		var in target
		if err := api.ReadUpTo(w, r, &in, maxBody); err != nil {
			return err
		}
		p, err := h.policy(in.Policy)
		if err != nil {
			return err
		}
		if err := do(h.Limiter, r.Context(), p, in.Key); err != nil {
			return err
		}
		return done(w)
	}
}

// policies lists the policies of the database, and those of files for other names.
func (h *Handler) policies(w http.ResponseWriter, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	all := append([]policies.Stored{}, h.Policies.List()...)
	stored := len(all)
	for _, p := range h.Defaults() {
		if !slices.ContainsFunc(all[:stored], func(o policies.Stored) bool { return o.Name == p.Name }) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b policies.Stored) int { return cmp.Compare(a.Name, b.Name) })
	return write(w, struct {
		Version  int64             `json:"version"`
		Policies []policies.Stored `json:"policies"`
	}{h.Policies.Version(), all})
}

// maxFound is the most rows of a list of keys, unless the request has another limit.
const maxFound = 100

// keys finds a key, or those that begin with a prefix, as they are stored.
func (h *Handler) keys(w http.ResponseWriter, r *http.Request) error {
	in, err := query(r, "key", "prefix", "policy", "algorithm", "limit")
	if err != nil {
		return err
	}
	if (in["key"] == "") == (in["prefix"] == "") {
		return api.BadField("key", "or prefix is needed, and not both")
	}
	limit := maxFound
	if text, given := in["limit"]; given {
		if limit, err = strconv.Atoi(text); err != nil {
			return api.BadField("limit", "is %.40q: must be a whole number from 1 to 10000", text)
		}
	}
	wanted := inspect.Keys{Text: in["prefix"], Prefix: true}
	if key := in["key"]; key != "" {
		wanted = inspect.Keys{Text: keys.Stored(key, h.KeySecret)}
	}
	found, err := h.Keys.Find(r.Context(), wanted, inspect.Filter{Policy: in["policy"], Algorithm: algorithm.Name(in["algorithm"])}, limit)
	if err != nil {
		return err
	}
	return write(w, found)
}

// query returns the parameters of a request's URL. A parameter that is not one of names, or is
// there twice, is an error.
func query(r *http.Request, names ...string) (map[string]string, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, api.BadField("query", "cannot be read: %v", err)
	}
	in := make(map[string]string, len(values))
	for name, all := range values {
		if !slices.Contains(names, name) {
			return nil, &api.Problem{Field: name, Message: fmt.Sprintf("%s is no parameter of this route, which has [%s]", shortened(name), strings.Join(names, " "))}
		}
		if len(all) > 1 {
			return nil, api.BadField(name, "is given %d times: give it once", len(all))
		}
		in[name] = all[0]
	}
	return in, nil
}
