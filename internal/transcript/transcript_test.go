package transcript

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recorder is a TB that keeps its messages.
type recorder struct{ messages []string }

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.messages = append(r.messages, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); panic(r) }

func TestCheck(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, password, _ := r.BasicAuth()
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("A", "b")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintln(w, r.Method, r.URL, name, password, r.Header.Get("K"))
	}))
	defer server.Close()
	const answer = "HTTP/1.1 418 I'm a teapot\nA: b\nContent-Type: text/plain\n\n"
	const first = "text\n\n```\n$ curl -i -X POST -u a:b:c -H 'K: v w' http://localhost:8080/x?y=z\n" + answer + "POST /x?y=z a b:c v w\n\n"
	for _, c := range []struct{ name, text, want string }{
		{"right", first + "$ curl -i http://localhost:8080/\n" + answer + "GET /   \n```\n", ""},
		{"another body", first + "$ curl -i http://localhost:8080/\n" + answer + "GET /x\n```\n", "curl -i http://localhost:8080/: the README shows"},
		{"another field", strings.Replace(first, "A: b", "A: c", 1) + "```\n", "the README shows"},
		{"nothing", "$ curl -i http://localhost:8080/\n", `shows no "$ curl -i "`},
		{"elsewhere", "```\n$ curl -i http://localhost/\n```\n", "http://localhost/ is not below http://localhost:8080"},
		{"another flag", "```\n$ curl -i -d x http://localhost:8080/\n```\n", "-d is not supported"},
		{"no value", "```\n$ curl -i http://localhost:8080/ -X\n```\n", "-X needs a value"},
	} {
		readme := filepath.Join(t.TempDir(), "README.md")
		if err := os.WriteFile(readme, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var r recorder
		func() {
			defer func() { _ = recover() }()
			Check(&r, readme, server.URL)
		}()
		if got := strings.Join(r.messages, "\n"); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s", c.name, got)
		}
	}
}
