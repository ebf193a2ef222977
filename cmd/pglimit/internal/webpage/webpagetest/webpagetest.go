// Package webpagetest sends requests to the handlers of web pages in tests, and checks the
// answers.
package webpagetest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
)

// Hang is the longest wait of a test for an answer or an event.
const Hang = 30 * time.Second

// Page is a handler that answers on the network.
type Page struct{ URL string }

// New serves a handler until the test ends. Streams must end before: after New, call
// t.Cleanup with a function that ends them.
func New(t *testing.T, h http.Handler) Page {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return Page{server.URL}
}

// Call sends a request and returns the answer with its body read.
func (s Page) Call(t *testing.T, method, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Hang)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(text)
}

// Post sends JSON and decodes the answer by Strict.
func (s Page) Post(t *testing.T, path, body string, into any) {
	t.Helper()
	answer, text := s.Call(t, http.MethodPost, path, body)
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%s %s: %s %s", path, body, answer.Status, text)
	}
	Strict(t, text, into)
}

// Strict decodes JSON into into, which must have all its fields.
func Strict(t *testing.T, text string, into any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// ExpectProblem sends a request and checks that the answer is this problem.
func (s Page) ExpectProblem(t *testing.T, method, at, body string, status int, field, algorithm, want string) {
	t.Helper()
	answer, text := s.Call(t, method, at, body)
	var p api.Problem
	Strict(t, text, &p)
	if answer.StatusCode != status || p.Field != field || string(p.Algorithm) != algorithm || !strings.Contains(p.Message, want) {
		t.Errorf("%s %.100s: %s %s\nwant %d, field %q, algorithm %q, %q", at, body, answer.Status, text, status, field, algorithm, want)
	}
	if strings.Contains(p.Message, "pglimit: ") || len([]rune(p.Message)) > api.MaxSentence || strings.Contains(p.Message, "\n") {
		t.Errorf("%s %s: %q", at, body, p.Message)
	}
}
