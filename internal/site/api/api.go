// Package api reads a page's JSON requests and writes its JSON answers.
package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"unicode/utf8"
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

// Read reads a request's JSON body into value. It returns a *Problem for an unknown
// field, for text that is not UTF-8, or if the body is more than one value.
func Read(w http.ResponseWriter, r *http.Request, value any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &Problem{Status: http.StatusUnsupportedMediaType, Message: "the body must be JSON: send Content-Type: application/json"}
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSON))
	if err != nil {
		return BadJSON("body", err)
	}
	if !utf8.Valid(text) { // encoding/json would replace it, and a key would become another
		return &Problem{Message: "the body is not valid UTF-8"}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(value); err != nil {
		return BadJSON("body", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return &Problem{Message: "the body is more than one JSON value"}
	}
	return nil
}
