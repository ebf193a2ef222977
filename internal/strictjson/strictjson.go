// Package strictjson decodes JSON in which no field is passed over or replaced by another one.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Decode decodes text, which is one JSON value, into value, whose fields have names of a to z,
// 0 to 9 and _. A field that is unknown, in another case, or there twice, is an error.
func Decode(text []byte, value any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(value); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("json: more than one JSON value")
	}
	return check(json.NewDecoder(bytes.NewReader(text)))
}

// check returns the error for a field in the next value of d, which is valid JSON.
// encoding/json ignores case, and takes ſ for s and the Kelvin sign for k.
func check(d *json.Decoder) error {
	begin, _ := d.Token()
	if begin != json.Delim('{') && begin != json.Delim('[') {
		return nil
	}
	seen := map[string]bool{}
	for d.More() {
		if begin == json.Delim('{') {
			key, _ := d.Token()
			name := fmt.Sprint(key)
			if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
				return fmt.Errorf("json: unknown field %q", name)
			}
			if seen[name] {
				return fmt.Errorf("json: field %q is there twice", name)
			}
			seen[name] = true
		}
		if err := check(d); err != nil {
			return err
		}
	}
	_, _ = d.Token() // the end
	return nil
}
