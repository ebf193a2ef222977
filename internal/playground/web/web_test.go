package web

import (
	"io/fs"
	"net/http"
	"os"
	"path"
	"testing"

	"github.com/pglimit/pglimit/internal/playground/sitetest"
)

// maxPage bounds the size of all files together, in bytes.
const maxPage = 64 << 10

// TestAdd: every file of the page is served at its path with its type. A client that
// has it receives no second copy.
func TestAdd(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	if err := Add(mux); err != nil {
		t.Fatal(err)
	}
	s := sitetest.New(t, mux)
	var size int64
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) == ".go" {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		size += int64(len(content))
		at := "/" + name
		if at == "/index.html" {
			at = "/"
		}
		answer, text := s.Call(t, http.MethodGet, at, "")
		if answer.StatusCode != http.StatusOK || text != string(content) || answer.Header.Get("Content-Type") != kinds[path.Ext(name)] {
			t.Errorf("%s: %s, %s, %d bytes, want %d", at, answer.Status, answer.Header.Get("Content-Type"), len(text), len(content))
		}
		if got := answer.Header.Get("Cache-Control"); got != "no-cache" {
			t.Errorf("%s: Cache-Control: %s", at, got)
		}
		if answer, text := s.Call(t, http.MethodGet, at, "", "If-None-Match", answer.Header.Get("ETag")); answer.StatusCode != http.StatusNotModified || text != "" {
			t.Errorf("%s again: %s %q", at, answer.Status, text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if size == 0 || size > maxPage {
		t.Errorf("the page is %d bytes, want at most %d", size, maxPage)
	}
	for _, missing := range []string{"/index.html", "/web/", "/web.go", "/nothing.js"} {
		if answer, _ := s.Call(t, http.MethodGet, missing, ""); answer.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", missing, answer.Status)
		}
	}
}
