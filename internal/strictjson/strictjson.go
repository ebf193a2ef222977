// Package strictjson decodes JSON that has no field which encoding/json would pass over or
// let another one replace.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Decode decodes text, which is one JSON value, into value. All its fields have names of
// a to z, 0 to 9 and _. A field that is unknown, in another case, or there twice, is an error.
func Decode(text []byte, value any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(value); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("json: more than one JSON value")
	}
	// encoding/json ignores case. Two letters beyond ASCII, such as ſ, are equal to ASCII ones.
	return check(json.NewDecoder(bytes.NewReader(text)))
}

// check reads one value, which is valid JSON, and returns the error for a field in it.
func check(d *json.Decoder) error {
	token, err := d.Token()
	if token != json.Delim('{') && token != json.Delim('[') {
		return err
	}
	seen := map[string]bool{}
	for d.More() {
		if token == json.Delim('{') {
			key, err := d.Token()
			name, _ := key.(string)
			switch {
			case err != nil:
				return err
			case strings.ContainsFunc(name, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9') }):
				return fmt.Errorf("json: unknown field %q", name)
			case seen[name]:
				return fmt.Errorf("json: field %q is there twice", name)
			}
			seen[name] = true
		}
		if err := check(d); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}
