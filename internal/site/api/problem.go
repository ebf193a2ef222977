package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"

	"github.com/pglimit/pglimit/limiter"
)

// MaxSentence is the most characters of a message. The error of an unreachable
// database can be long: it names every address that was tried.
const MaxSentence = 300

// Problem is an error as the API sends it to clients.
type Problem struct {
	Status    int               `json:"-"` // 0 is 400
	Message   string            `json:"error"`
	Field     string            `json:"field,omitempty"` // its name in JSON
	Algorithm limiter.Algorithm `json:"algorithm,omitempty"`
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

// GoNames maps the names of a policy's fields in JSON to those in Go.
var GoNames = map[string]string{
	"name": "Name", "algorithm": "Algorithm", "limit": "Limit", "period": "Period", "burst": "Burst", "tick": "Tick",
	"aligned": "Aligned", "calendar": "Calendar", "time_zone": "TimeZone", "block_for": "BlockFor",
	"durability": "Durability", "on_error": "OnError",
}

// ProblemOf returns the problem for an error of the limiter: it names the invalid
// field, or has status 503.
func ProblemOf(err error, a limiter.Algorithm) *Problem {
	p := &Problem{Message: Sentence(err), Algorithm: a}
	var policy *limiter.PolicyError
	switch {
	case errors.As(err, &policy):
		for name, field := range GoNames {
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
	return &Problem{Message: "the " + what + " cannot be read: " + strings.TrimPrefix(strings.TrimPrefix(Sentence(err), "policy: "), "json: ")}
}
