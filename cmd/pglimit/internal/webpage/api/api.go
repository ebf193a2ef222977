// Package api reads a page's JSON requests and writes its JSON answers.
package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/strictjson"
	"github.com/pglimit/pglimit/limiter"
)

// maxJSON is the largest JSON body in bytes.
const maxJSON = 64 << 10

// Answer returns a handler that sends the result of f by Send.
func Answer(f func(http.ResponseWriter, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		value, err := f(w, r)
		Send(w, value, err)
	}
}

// Send sends value as JSON or, if err is not nil, err. A value's method HTTPStatus
// sets the status. Default: 200. A *Problem is sent with its status, any other error
// with 500.
func Send(w http.ResponseWriter, value any, err error) {
	status := http.StatusOK
	if chosen, ok := value.(interface{ HTTPStatus() int }); ok {
		status = chosen.HTTPStatus()
	}
	if err != nil {
		var p *Problem
		if !errors.As(err, &p) {
			p = &Problem{Status: http.StatusInternalServerError, Message: Sentence(err)}
		}
		value, status = p, p.Status
		if status == 0 {
			status = http.StatusBadRequest
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // fails if the client is gone
}

// Read is ReadUpTo for 64 KiB.
func Read(w http.ResponseWriter, r *http.Request, value any) error {
	return ReadUpTo(w, r, value, maxJSON)
}

// ReadUpTo reads a request's JSON body of at most max bytes into value. It returns a *Problem
// for a field that is unknown, in another case, or there twice, for text that is not
// keys.Decodable, or if the body is more than one value.
func ReadUpTo(w http.ResponseWriter, r *http.Request, value any, max int64) error {
	text, err := Body(w, r, max)
	if err != nil {
		return err
	}
	return Decode(text, value)
}

// Body reads a request's body of at most max bytes, which must be called JSON.
func Body(w http.ResponseWriter, r *http.Request, max int64) (text []byte, err error) {
	const wanted = "application/json"
	if sent := r.Header.Get("Content-Type"); sent != wanted {
		if kind, _, err := mime.ParseMediaType(sent); err != nil || kind != wanted {
			return nil, &Problem{Status: http.StatusUnsupportedMediaType, Message: "the body must be JSON: send Content-Type: application/json"}
		}
	}
	const atOnce = 1 << 10 // bytes that are set aside for a client before it sends them
	if n := r.ContentLength; n > 0 && n <= min(max, atOnce) {
		text = make([]byte, n)
		_, err = io.ReadFull(r.Body, text)
	} else {
		text, err = io.ReadAll(http.MaxBytesReader(w, r.Body, max))
	}
	if err != nil {
		return nil, BadJSON("body", err)
	}
	return text, nil
}

// Decode is what ReadUpTo does with a body.
func Decode(text []byte, value any) error {
	if !keys.Decodable(text) {
		return &Problem{Message: "the body is not valid UTF-8, or has half a surrogate pair"}
	}
	if err := strictjson.Decode(text, value); err != nil {
		return BadJSON("body", err)
	}
	return nil
}

// MaxSentence is the most characters of a message. The error of an unreachable
// database can be long: it names every address that was tried.
const MaxSentence = 300

// Problem is an error as the API sends it to clients.
type Problem struct {
	Status    int               `json:"-"` // 0 is 400
	Message   string            `json:"error"`
	Field     string            `json:"field,omitempty"` // its name in JSON
	Algorithm limiter.Algorithm `json:"algorithm,omitempty"`
	Unknown   string            `json:"-"` // a field that was sent and is none; no input of a page has it
}

// Error returns the message.
func (p *Problem) Error() string { return p.Message }

// BadField returns a problem with a field. field is its name in JSON.
func BadField(field, format string, args ...any) *Problem {
	return &Problem{Field: field, Message: field + " " + fmt.Sprintf(format, args...)}
}

// Unavailable returns a problem of status 503.
func Unavailable(message string) *Problem {
	return &Problem{Status: http.StatusServiceUnavailable, Message: message}
}

// fields are the names in JSON of a request's fields and of a method's parameters.
var fields = map[string]string{
	"key": "key", "cost": "cost", "IdempotencyKey": "idempotency_key", "Floor": "floor", "Note": "note", "From": "from", "TTL": "ttl", "ttl": "ttl",
	"ticket": "id", "reservation": "id", "slot": "id", "ids": "ids", "units": "units", "duration": "for", "Cost": "cost",
	"Expires": "expires", "Priority": "priority", "Source": "source",
}

// ProblemOf returns the problem for an error of the limiter: it names the invalid
// field, or has status 503. A *Problem is returned as it is.
func ProblemOf(err error, a limiter.Algorithm) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	p = &Problem{Message: Sentence(err), Algorithm: a}
	var policy *limiter.PolicyError
	var invalid *store.InvalidError
	switch {
	case errors.As(err, &policy):
		for _, f := range policyfile.PolicyFields {
			if f.Go == policy.Field {
				p.Field = f.Name
			}
		}
	case errors.Is(err, limiter.ErrInvalid):
		p.Message = strings.TrimPrefix(p.Message, "invalid: ")
		if errors.As(err, &invalid) {
			list, name := "", invalid.Field // requests[1].Cost
			if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
				list, name = name[:dot+1], name[dot+1:]
			}
			name, index, of := strings.Cut(name, "[") // ids[1]
			if p.Field = fields[name]; p.Field != "" {
				p.Field = list + p.Field
			}
			if of && p.Field != "" {
				p.Field += "[" + index
			}
		}
	case errors.Is(err, limiter.ErrUnsupported):
	default:
		p.Status = http.StatusServiceUnavailable
	}
	return p
}

// Sentence returns an error's text as one line of at most MaxSentence characters,
// without the limiter's prefix.
func Sentence(err error) string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "?")), " ")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "pglimit: "), "invalid policy: ")
	if all := []rune(text); len(all) > MaxSentence {
		text = string(all[:MaxSentence-1]) + "…"
	}
	return text
}

// BadJSON returns the problem for an error of encoding/json. what is "body" or a part
// of it.
func BadJSON(what string, err error) *Problem {
	var kind *json.UnmarshalTypeError
	var tooLong *http.MaxBytesError
	var bad *Problem
	switch {
	case errors.As(err, &bad):
		return bad
	case errors.As(err, &kind):
		if kind.Field != "" {
			what = kind.Field[strings.LastIndexByte(kind.Field, '.')+1:]
		}
		want := map[reflect.Kind]string{
			reflect.String: "a string", reflect.Bool: "true or false", reflect.Slice: "an array", reflect.Struct: "an object", reflect.Int: "a whole number",
		}[kind.Type.Kind()]
		return BadField(what, "is a JSON %s: must be %s", kind.Value, cmp.Or(want, "a number"))
	case errors.As(err, &tooLong):
		return &Problem{Status: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("the "+what+" is longer than %d bytes", tooLong.Limit)}
	case errors.Is(err, io.EOF):
		return &Problem{Message: "the " + what + " is empty: send JSON"}
	}
	reason := strings.TrimPrefix(strings.TrimPrefix(Sentence(err), "policy: "), "json: ")
	p := &Problem{Message: "the " + what + " cannot be read: " + reason}
	if name, ok := strings.CutPrefix(reason, "unknown field "); ok {
		p.Unknown, _ = strconv.Unquote(name) // of a long name, which Sentence cut, nothing
	}
	return p
}
