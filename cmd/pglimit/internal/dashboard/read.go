package dashboard

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/site/api"
	"github.com/pglimit/pglimit/limiter"
)

// addReads adds the paths that read. A request that names a key is a POST, so that the
// key is in its body.
func (s *Server) addReads(mux *http.ServeMux) {
	mux.Handle("GET /api/policies", s.read(func(ctx context.Context, source Source) (any, error) {
		p, err := source.Policies(ctx)
		return policiesAnswer(p), err
	}))
	mux.Handle("GET /api/denials", s.read(func(ctx context.Context, source Source) (any, error) {
		d, err := source.Denials(ctx)
		return denialsAnswer{d.At, d.Slot.Seconds(), orEmpty(d.Slots)}, err
	}))
	mux.Handle("GET /api/doctor", s.read(func(ctx context.Context, source Source) (any, error) {
		report, err := source.Doctor(ctx)
		report.Checks = orEmpty(report.Checks)
		return report, err
	}))
	mux.Handle("POST /api/history", post(s, s.reads, func(ctx context.Context, source Source, in *historyRequest) (any, error) {
		changes, err := source.History(ctx, in.Policy, in.Limit)
		return changesAnswer(changes), err
	}))
	mux.Handle("POST /api/keys", post(s, s.reads, func(ctx context.Context, source Source, in *keysRequest) (any, error) {
		keys, err := source.Keys(ctx, Query(*in))
		keys.Rows = orEmpty(keys.Rows)
		return keys, err
	}))
	mux.Handle("POST /api/key", post(s, s.reads, func(ctx context.Context, source Source, in *keyRequest) (any, error) {
		key, err := source.Key(ctx, Ref(*in))
		return keyAnswer(key), err
	}))
}

// read answers with what f returns.
func (s *Server) read(f func(context.Context, Source) (any, error)) http.Handler {
	return api.Answer(func(_ http.ResponseWriter, r *http.Request) (any, error) { return s.call(r, s.reads, f) })
}

// request is a request's body, as *T.
type request[T any] interface {
	*T
	// check returns an *api.Problem if the request is not valid, and sets defaults.
	check() error
}

// post answers with what f returns for a request's body. Its calls take tokens of inFlight.
func post[T any, R request[T]](s *Server, inFlight chan struct{}, f func(context.Context, Source, *T) (any, error)) http.Handler {
	return api.Answer(func(w http.ResponseWriter, r *http.Request) (any, error) {
		in := new(T)
		if err := api.Read(w, r, in); err != nil {
			return nil, err
		}
		if err := R(in).check(); err != nil {
			return nil, err
		}
		return s.call(r, inFlight, func(ctx context.Context, source Source) (any, error) { return f(ctx, source, in) })
	})
}

// call calls f with the Source, when inFlight has room for a token.
func (s *Server) call(r *http.Request, inFlight chan struct{}, f func(context.Context, Source) (any, error)) (any, error) {
	ctx, cancel := context.WithTimeout(r.Context(), s.config.Timeout)
	defer cancel()
	select {
	case inFlight <- struct{}{}:
		defer func() { <-inFlight }()
	case <-ctx.Done():
		return nil, api.Unavailable("the dashboard waits for the database: too many requests are in flight")
	}
	value, err := f(ctx, s.config.Source)
	if err != nil {
		return nil, api.ProblemOf(err, "")
	}
	return value, nil
}

type denialsAnswer struct {
	At    time.Time    `json:"at"`
	SlotS float64      `json:"slot_s"`
	Slots []DenialSlot `json:"slots"`
}

type policyAnswer struct {
	Policy    limiter.Policy `json:"policy"`
	Note      string         `json:"note,omitempty"`
	Askers    bool           `json:"askers"`
	MaxTTL    string         `json:"max_ttl,omitempty"`
	Overrides int            `json:"overrides"`
	Version   int64          `json:"version"`
	ChangedAt time.Time      `json:"changed_at,omitzero"`
	ChangedBy string         `json:"changed_by,omitempty"`
}

func policiesAnswer(p Policies) any {
	list := make([]policyAnswer, len(p.Policies))
	for i, p := range p.Policies {
		list[i] = policyAnswer{p.Policy, p.Note, p.Askers, duration(p.MaxTTL), p.Overrides, p.Version, p.ChangedAt, p.ChangedBy}
	}
	return map[string]any{"at": p.At, "version": p.Version, "policies": list}
}

type overrideAnswer struct {
	Policy    string    `json:"policy"`
	Limit     *float64  `json:"limit,omitempty"`
	Burst     *float64  `json:"burst,omitempty"`
	Unlimited bool      `json:"unlimited,omitempty"`
	Shadow    *bool     `json:"shadow,omitempty"`
	Until     time.Time `json:"until,omitzero"`
	Note      string    `json:"note,omitempty"`
	ChangedAt time.Time `json:"changed_at,omitzero"`
	ChangedBy string    `json:"changed_by,omitempty"`
}

func keyAnswer(k Key) any {
	overrides := make([]overrideAnswer, len(k.Overrides))
	for i, o := range k.Overrides {
		overrides[i] = overrideAnswer{o.Policy, o.Limit, o.Burst, o.Unlimited, o.Shadow, o.Until, o.Note, o.ChangedAt, o.ChangedBy}
	}
	k.Rows, k.Reservations, k.Denials = orEmpty(k.Rows), orEmpty(k.Reservations), orEmpty(k.Denials)
	return struct {
		Key
		Overrides []overrideAnswer `json:"overrides"`
	}{k, overrides}
}

// orEmpty returns list, or an empty list instead of nil, which is null in JSON.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
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

// done is the answer of a change.
type done struct {
	Found bool `json:"found"` // whether there was something to change
}

// addWrites adds the paths that change keys.
func (s *Server) addWrites(mux *http.ServeMux) {
	mux.Handle("POST /api/block", s.writing(post(s, s.changes, func(ctx context.Context, source Source, in *blockRequest) (any, error) {
		err := source.Block(ctx, in.target(), in.lasts)
		s.changed("block", in.target(), err, "for", in.lasts)
		return done{true}, err
	})))
	mux.Handle("POST /api/unblock", s.writing(post(s, s.changes, func(ctx context.Context, source Source, in *targetRequest) (any, error) {
		found, err := source.Unblock(ctx, in.target())
		s.changed("unblock", in.target(), err, "found", found)
		return done{found}, err
	})))
	mux.Handle("POST /api/reset", s.writing(post(s, s.changes, func(ctx context.Context, source Source, in *targetRequest) (any, error) {
		found, err := source.Reset(ctx, in.target())
		s.changed("reset", in.target(), err, "found", found)
		return done{found}, err
	})))
}

// changed logs a change, without the key.
func (s *Server) changed(verb string, t Target, err error, more ...any) {
	if err == nil {
		s.config.Logger.Info("pglimit: the dashboard changed a key", append([]any{"verb", verb, "policy", t.Policy, "algorithm", t.Algorithm}, more...)...)
	}
}
