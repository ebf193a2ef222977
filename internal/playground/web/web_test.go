package web_test

import (
	"net/http"
	"testing"

	"github.com/pglimit/pglimit/internal/playground/web"
	"github.com/pglimit/pglimit/internal/site"
	"github.com/pglimit/pglimit/internal/site/look"
	"github.com/pglimit/pglimit/internal/site/sitetest"
)

// maxPage bounds the size of all files together, in bytes.
const maxPage = 64 << 10

// TestFiles: every file of the page is served, and all of them are small.
func TestFiles(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	if err := site.AddFiles(mux, look.Files); err != nil {
		t.Fatal(err)
	}
	if err := site.AddFiles(mux, web.Files); err != nil {
		t.Fatal(err)
	}
	size := sitetest.Files(t, mux, web.Files) + sitetest.Files(t, mux, look.Files)
	if size == 0 || size > maxPage {
		t.Errorf("the page is %d bytes, want at most %d", size, maxPage)
	}
}
