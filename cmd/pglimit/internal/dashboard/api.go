package dashboard

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/policies"
)

// addReads adds the paths that read. A request that names a key is a POST, so that the
// key is in its body.
func (s *Server) addReads(mux *http.ServeMux) {
	source := s.config.Source
	mux.Handle("GET /api/policies", s.read(func(ctx context.Context) (any, error) { return source.Policies(ctx) }))
	mux.Handle("GET /api/doctor", s.read(func(ctx context.Context) (any, error) { return source.Doctor(ctx) }))
	mux.Handle("POST /api/history", post(s, s.reads, func(ctx context.Context, in *historyRequest) (any, error) {
		changes, err := source.History(ctx, in.Policy, in.Limit)
		return changesAnswer(changes), err
	}))
	mux.Handle("POST /api/overrides", post(s, s.reads, func(ctx context.Context, in *policyRequest) (any, error) { return source.Overrides(ctx, in.Policy) }))
	mux.Handle("POST /api/denials", post(s, s.reads, func(ctx context.Context, q *DenialQuery) (any, error) { return source.Denials(ctx, *q) }))
	mux.Handle("POST /api/keys", post(s, s.reads, func(ctx context.Context, q *Query) (any, error) { return source.Keys(ctx, *q) }))
	mux.Handle("POST /api/why", post(s, s.reads, func(ctx context.Context, in *whyRequest) (any, error) { return source.Why(ctx, in.Ref, in.at) }))
	mux.Handle("POST /api/search", post(s, s.reads, func(ctx context.Context, in *searchRequest) (any, error) { return source.Search(ctx, in.Prefix) }))
	mux.Handle("POST /api/key", post(s, s.reads, func(ctx context.Context, key *Ref) (any, error) { return source.Key(ctx, *key) }))
}

// read answers with what f returns.
func (s *Server) read(f func(context.Context) (any, error)) http.Handler {
	return api.Answer(func(_ http.ResponseWriter, r *http.Request) (any, error) { return s.call(r, s.reads, f) })
}

// request is a request's body, as *T.
type request[T any] interface {
	*T
	// check returns an *api.Problem if the request is not valid, and sets defaults.
	check() error
}

// post answers with what f returns for a request's body. Its calls take tokens of inFlight.
func post[T any, R request[T]](s *Server, inFlight chan struct{}, f func(context.Context, *T) (any, error)) http.Handler {
	return api.Answer(func(w http.ResponseWriter, r *http.Request) (any, error) {
		in := new(T)
		if err := api.Read(w, r, in); err != nil {
			return nil, err
		}
		if err := R(in).check(); err != nil {
			return nil, err
		}
		return s.call(r, inFlight, func(ctx context.Context) (any, error) { return f(ctx, in) })
	})
}

// call calls f, when inFlight has room for a token.
func (s *Server) call(r *http.Request, inFlight chan struct{}, f func(context.Context) (any, error)) (any, error) {
	ctx, cancel := context.WithTimeout(r.Context(), s.config.Timeout)
	defer cancel()
	select {
	case inFlight <- struct{}{}:
		defer func() { <-inFlight }()
	case <-ctx.Done():
		return nil, api.Unavailable("the dashboard waits for the database: too many requests are in flight")
	}
	value, err := f(ctx)
	if err != nil {
		return nil, api.ProblemOf(err, "")
	}
	return value, nil
}

// change is a change of a policy or an override, field by field.
type change struct {
	Version int64                   `json:"version"`
	At      time.Time               `json:"at"`
	By      string                  `json:"by"`
	Note    string                  `json:"note,omitempty"`
	Policy  string                  `json:"policy"`
	Key     string                  `json:"key,omitempty"` // of an override, as stored
	Kind    string                  `json:"kind"`          // added, changed or removed
	Fields  []policyfile.Difference `json:"fields"`        // those that differ
}

var kinds = map[string]string{"set": "added", "change": "changed", "delete": "removed"}

func changesAnswer(changes []policies.Change) any {
	list := make([]change, len(changes))
	for i, c := range changes {
		d := policyfile.ChangeOf(c)
		fields := slices.DeleteFunc(d.Fields, func(f policyfile.Difference) bool { return f.Name == "note" }) // it is why
		list[i] = change{c.Version, c.ChangedAt, c.ChangedBy, c.Note, c.Name, c.Key, kinds[d.Action], fields}
	}
	return map[string]any{"changes": list}
}

// TokenHeader is the header field with the token. A page of another site cannot set it
// without the server's consent (CORS), which the server never gives.
const TokenHeader = "Pglimit-Token"

// NewToken returns a random token of at least 128 bits.
func NewToken() string { return rand.Text() }

// hasToken reports whether a request may change keys.
func (s *Server) hasToken(r *http.Request) bool {
	// Of equal length, and compared in constant time.
	given, want := sha256.Sum256([]byte(r.Header.Get(TokenHeader))), sha256.Sum256([]byte(s.config.Token))
	return s.config.Token != "" && subtle.ConstantTimeCompare(given[:], want[:]) == 1
}

// writing passes requests with the token to next. The guard has refused those of other
// sites before.
func (s *Server) writing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.hasToken(r) {
			next.ServeHTTP(w, r)
			return
		}
		message := "the token is missing or not valid: open the URL that pglimit dashboard --write printed"
		if s.config.Token == "" {
			message = "the dashboard only reads: start it with pglimit dashboard --write"
		}
		api.Send(w, nil, &api.Problem{Status: http.StatusForbidden, Message: message})
	})
}

// addWrites adds the paths that change keys.
func (s *Server) addWrites(mux *http.ServeMux) {
	source := s.config.Source
	mux.Handle("POST /api/block", s.writing(post(s, s.changes, func(ctx context.Context, in *blockRequest) (any, error) {
		err := source.Block(ctx, in.Target, in.lasts)
		return s.changed("block", in.Target, true, err, "for", in.lasts)
	})))
	mux.Handle("POST /api/unblock", s.writing(post(s, s.changes, func(ctx context.Context, t *Target) (any, error) {
		found, err := source.Unblock(ctx, *t)
		return s.changed("unblock", *t, found, err, "found", found)
	})))
	mux.Handle("POST /api/reset", s.writing(post(s, s.changes, func(ctx context.Context, t *Target) (any, error) {
		found, err := source.Reset(ctx, *t)
		return s.changed("reset", *t, found, err, "found", found)
	})))
}

// addEdits adds the paths that change policies and overrides. A preview needs the token too.
func (s *Server) addEdits(mux *http.ServeMux) {
	mux.Handle("POST /api/preview", s.writing(post(s, s.reads, func(ctx context.Context, e *Edit) (any, error) { return e.preview(ctx, s.config.Source) })))
	mux.Handle("POST /api/apply", s.writing(post(s, s.changes, func(ctx context.Context, e *Edit) (any, error) {
		version, err := s.config.Source.Apply(ctx, *e)
		switch {
		case errors.Is(err, policies.ErrChanged):
			return nil, &api.Problem{Status: http.StatusConflict, Message: "the policies were changed meanwhile: look at the difference again"}
		case errors.Is(err, policies.ErrNoPolicy):
			return nil, &api.Problem{Status: http.StatusConflict, Message: api.Sentence(err)}
		}
		if err == nil {
			s.config.Logger.Info("pglimit: the dashboard changed a policy", "policy", e.name(), "override", e.Override != nil, "delete", e.Delete, "version", version)
		}
		return map[string]int64{"version": version}, err
	})))
}

// changed logs a change, without the key, and returns the answer: whether there was
// something to change.
func (s *Server) changed(verb string, t Target, found bool, err error, more ...any) (any, error) {
	if err == nil {
		s.config.Logger.Info("pglimit: the dashboard changed a key", append([]any{"verb", verb, "policy", t.Policy, "algorithm", t.Algorithm}, more...)...)
	}
	return map[string]bool{"found": found}, err
}
