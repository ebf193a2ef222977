package accesslog

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/keys"
)

// object is a line in JSON. Its values are parsed when they are looked up.
type object map[string]json.RawMessage

// errNoObject is parseObject's error for a line that does not begin with {.
var errNoObject = errors.New("not a JSON object")

func parseObject(line string) (o object, err error) {
	if !strings.HasPrefix(strings.TrimLeft(line, " \t"), "{") {
		return nil, errNoObject
	}
	if err := json.Unmarshal([]byte(line), &o); err != nil {
		return nil, errors.New("begins with { but is not a JSON object")
	}
	return o, nil
}

// times are the names of the fields with a request's time: Caddy's, then nginx's from the
// most to the least precise, then other common ones.
var times = []string{"ts", "msec", "time_iso8601", "time_local", "timestamp", "@timestamp", "time"}

// time returns the request's time. The error names the fields that may have it.
func (o object) time() (at time.Time, err error) {
	for _, name := range times {
		text, err := o.text(name)
		if err != nil {
			return at, err
		}
		if text == "" {
			continue
		}
		at, ok := parseTime(text)
		if !ok {
			return at, fmt.Errorf("%s is %.40q: not a time", name, text)
		}
		return at, nil
	}
	return at, fmt.Errorf("no time: none of the fields %s", strings.Join(times, ", "))
}

// layouts are those of Caddy's time_format and of nginx. Times without a zone are in UTC.
var layouts = []string{
	time.RFC3339, "2006-01-02T15:04:05Z0700", timeLayout, "2006/01/02 15:04:05", "2006-01-02 15:04:05", http.TimeFormat,
}

// parseTime parses a time in one of layouts, or a number of seconds, milliseconds,
// microseconds or nanoseconds since 1970: which one is clear from its size, for times from
// 1973 to 5138.
func parseTime(text string) (at time.Time, ok bool) {
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		unit := 1e6 // microseconds
		for limit := 1e11; n >= limit && unit > 1e-3; limit *= 1e3 {
			unit /= 1e3
		}
		if us := math.Round(n * unit); us > 0 && us < 1e18 {
			return time.UnixMicro(int64(us)), true
		}
		return at, false
	}
	for _, layout := range layouts {
		if at, err := time.Parse(layout, text); err == nil {
			return at, true
		}
	}
	return at, false
}

// field returns, as text, the field at path name or the request header name: "" if there is
// none.
func (o object) field(name string) (text string, err error) {
	for _, path := range []string{name, "request.headers." + name, "http_" + strings.ReplaceAll(name, "-", "_")} {
		if text, err = o.text(path); text != "" || err != nil {
			return text, err
		}
	}
	return "", nil
}

// text returns the value at a path, the first one of a list: "" if there is none. The error
// is for a value that is not text, a number or a truth value.
func (o object) text(path string) (text string, err error) {
	value := o.value(path)
	for {
		switch {
		case len(value) == 0:
			return "", nil
		case value[0] == '"' && !keys.Decodable(value):
			return "\xff", nil // no text either, and not equal to another key
		case value[0] == '"':
			err = json.Unmarshal(value, &text)
			return text, err
		case value[0] == '[':
			var list []json.RawMessage
			if err := json.Unmarshal(value, &list); err != nil || len(list) == 0 {
				return "", err
			}
			if value = list[0]; len(value) > 0 && value[0] == '[' {
				return "", noKey(path + " is a list of lists")
			}
		case value[0] == '{':
			if path == "request" {
				return "", nil // Caddy's
			}
			return "", noKey(fmt.Sprintf("%s is an object: name a field in it, such as %s.%s", path, path, firstName(value)))
		case string(value) == "null":
			return "", nil
		default:
			return string(value), nil
		}
	}
}

// value returns the value at a path of names and dots; a name may have dots. Names need
// not have the same case: header fields do not.
func (o object) value(path string) json.RawMessage {
	if value, ok := o.named(path); ok {
		return value
	}
	for i := range len(path) {
		if path[i] != '.' {
			continue
		}
		value, ok := o.named(path[:i])
		if !ok || len(value) == 0 || value[0] != '{' {
			continue
		}
		var below object
		if json.Unmarshal(value, &below) == nil {
			if found := below.value(path[i+1:]); found != nil {
				return found
			}
		}
	}
	return nil
}

// named returns the value of a name, or else of one that differs in case.
func (o object) named(name string) (value json.RawMessage, ok bool) {
	if value, ok = o[name]; ok {
		return value, true
	}
	best := ""
	for other := range o {
		if strings.EqualFold(other, name) && (!ok || other < best) {
			best, ok = other, true
		}
	}
	return o[best], ok
}

// firstName returns a name in an object, for an example.
func firstName(value json.RawMessage) string {
	var o object
	if json.Unmarshal(value, &o) != nil || len(o) == 0 {
		return "name"
	}
	return fmt.Sprintf("%.40s", slices.Sorted(maps.Keys(o))[0])
}
