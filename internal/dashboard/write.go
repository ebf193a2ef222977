package dashboard

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"

	"github.com/pglimit/pglimit/internal/site/api"
)

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
	mux.Handle("POST /api/block", s.writing(post(s, func(ctx context.Context, source Source, in *blockRequest) (any, error) {
		err := source.Block(ctx, in.target(), in.lasts)
		s.changed("block", in.target(), err, "for", in.lasts)
		return done{true}, err
	})))
	mux.Handle("POST /api/unblock", s.writing(post(s, func(ctx context.Context, source Source, in *targetRequest) (any, error) {
		found, err := source.Unblock(ctx, in.target())
		s.changed("unblock", in.target(), err, "found", found)
		return done{found}, err
	})))
	mux.Handle("POST /api/reset", s.writing(post(s, func(ctx context.Context, source Source, in *targetRequest) (any, error) {
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
