package playground

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"

	"github.com/pglimit/pglimit/limiter"
)

// maxSentence is how many characters an error may have. That of a database that
// cannot be reached tells of every address that was tried.
const maxSentence = 300

// problem is an error as the API tells it.
type problem struct {
	status    int               // 0 is 400
	Message   string            `json:"error"`
	Field     string            `json:"field,omitempty"` // its name in JSON
	Algorithm limiter.Algorithm `json:"algorithm,omitempty"`
}

func (p *problem) Error() string { return p.Message }

// badField is about a field by its name in JSON.
func badField(field, format string, args ...any) *problem {
	return &problem{Field: field, Message: field + " " + fmt.Sprintf(format, args...)}
}

// unavailable is an answer of 503.
func unavailable(message string) *problem {
	return &problem{status: http.StatusServiceUnavailable, Message: message}
}

// goNames are a policy's fields, by their names in JSON.
var goNames = map[string]string{
	"name": "Name", "algorithm": "Algorithm", "limit": "Limit", "period": "Period", "burst": "Burst", "tick": "Tick",
	"aligned": "Aligned", "calendar": "Calendar", "time_zone": "TimeZone", "block_for": "BlockFor",
	"durability": "Durability", "on_error": "OnError",
}

// problemOf tells what the limiter says of an ask: what is wrong with it, or that
// there is no answer to be had.
func problemOf(err error, a limiter.Algorithm) *problem {
	p := &problem{Message: sentence(err), Algorithm: a}
	var policy *limiter.PolicyError
	switch {
	case errors.As(err, &policy):
		for name, field := range goNames {
			if field == policy.Field {
				p.Field = name
			}
		}
	case errors.Is(err, limiter.ErrInvalid):
		p.Message = strings.TrimPrefix(p.Message, "invalid: ")
		for _, field := range []string{"cost", "key"} {
			if strings.HasPrefix(p.Message, field+" ") {
				p.Field = field
			}
		}
	case errors.Is(err, limiter.ErrUnsupported):
	default:
		p.status = http.StatusServiceUnavailable
	}
	return p
}

// sentence is an error in one line that is not too long, without the words that
// begin all of them.
func sentence(err error) string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "?")), " ")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "pglimit: "), "invalid policy: ")
	if all := []rune(text); len(all) > maxSentence {
		text = string(all[:maxSentence-1]) + "…"
	}
	return text
}

// badJSON tells why what, the body or a part of it, could not be read.
func badJSON(what string, err error) *problem {
	var kind *json.UnmarshalTypeError
	var tooLong *http.MaxBytesError
	var bad *problem
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
		return badField(what, "is a JSON %s: must be %s", kind.Value, cmp.Or(want, "a number"))
	case errors.As(err, &tooLong):
		return &problem{status: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("the "+what+" is longer than %d bytes", tooLong.Limit)}
	case errors.Is(err, io.EOF):
		return &problem{Message: "the " + what + " is empty: send JSON"}
	}
	return &problem{Message: "the " + what + " cannot be read: " + strings.TrimPrefix(strings.TrimPrefix(sentence(err), "policy: "), "json: ")}
}

// answer makes a handler of a function that returns what is to be sent as JSON, or
// an error. A *problem is sent with its status; another error is the server's.
func answer(f func(http.ResponseWriter, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		value, err := f(w, r)
		status := http.StatusOK
		if created, ok := value.(interface{ status() int }); ok {
			status = created.status()
		}
		if err != nil {
			var p *problem
			if !errors.As(err, &p) {
				p = &problem{status: http.StatusInternalServerError, Message: sentence(err)}
			}
			value, status = p, p.status
			if status == 0 {
				status = http.StatusBadRequest
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(value) // a client that has gone needs no answer
	}
}

// read reads a request's JSON body, all of it and no unknown field, into value.
func read(w http.ResponseWriter, r *http.Request, value any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &problem{status: http.StatusUnsupportedMediaType, Message: "the body must be JSON: send Content-Type: application/json"}
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxJSON))
	d.DisallowUnknownFields()
	if err := d.Decode(value); err != nil {
		return badJSON("body", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return &problem{Message: "the body is more than one JSON value"}
	}
	return nil
}
