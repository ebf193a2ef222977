package site_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pglimit/pglimit/internal/site"
	"github.com/pglimit/pglimit/internal/site/sitetest"
)

func TestAddFiles(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{
		"index.html": {Data: []byte("<!doctype html>")}, "a.js": {Data: []byte("1")}, "a.css": {Data: []byte("a {}")}, "a.svg": {Data: []byte("<svg/>")},
	}
	mux := http.NewServeMux()
	if err := site.AddFiles(mux, files); err != nil {
		t.Fatal(err)
	}
	sitetest.Files(t, mux, files)
	files["a.unknown"] = &fstest.MapFile{}
	if err := site.AddFiles(http.NewServeMux(), files); err == nil || !strings.Contains(err.Error(), "a.unknown: its content type is unknown") {
		t.Errorf("a file of an unknown type: %v", err)
	}
}
