package sitetest

import (
	"io/fs"
	"mime"
	"net/http"
	"path"
	"testing"
)

// Files checks that h serves each of the files at its path with its type, index.html as
// /, and that a client that has a file receives no second copy. It returns the size of
// all files in bytes.
func Files(t *testing.T, h http.Handler, files fs.FS) (size int) {
	t.Helper()
	s := New(t, h)
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		size += len(content)
		at := "/" + name
		if at == "/index.html" {
			at = "/"
		}
		answer, text := s.Call(t, http.MethodGet, at, "")
		kind, _, err := mime.ParseMediaType(answer.Header.Get("Content-Type"))
		want := map[string]string{".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}[path.Ext(name)]
		if answer.StatusCode != http.StatusOK || text != string(content) || kind != want || err != nil {
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
	for _, missing := range []string{"/index.html", "/web/", "/web.go", "/look.go", "/nothing.js"} {
		if answer, _ := s.Call(t, http.MethodGet, missing, ""); answer.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", missing, answer.Status)
		}
	}
	return size
}
