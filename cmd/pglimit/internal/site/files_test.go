package site_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/site"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/site/sitetest"
	"github.com/pglimit/pglimit/internal/must"
)

func TestAddFiles(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{
		"index.html": {Data: []byte("<!doctype html>")}, "a.js": {Data: []byte("1")}, "a.css": {Data: []byte("a {}")}, "a.svg": {Data: []byte("<svg/>")},
	}
	page := must.OK(site.Guard{}.Handler(http.NewServeMux(), files))(t)
	sitetest.Files(t, page, files)
	files["a.unknown"] = &fstest.MapFile{}
	if _, err := (site.Guard{}).Handler(http.NewServeMux(), files); err == nil || !strings.Contains(err.Error(), "a.unknown: its content type is unknown") {
		t.Errorf("a file of an unknown type: %v", err)
	}
}
