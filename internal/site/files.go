package site

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"time"
)

// kinds maps extensions to content types, because the system's table may be wrong.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".png":  "image/png",
	".ico":  "image/x-icon",
}

// AddFiles serves each of the files by its path, and index.html as /. It returns an
// error for a file whose content type it does not know.
func AddFiles(mux *http.ServeMux, files fs.FS) error {
	return fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		kind, known := kinds[path.Ext(name)]
		if !known {
			return fmt.Errorf("site: %s: its content type is unknown", name)
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		at := "/" + name
		if name == "index.html" {
			at = "/{$}"
		}
		tag := fmt.Sprintf(`"%x"`, sha256.Sum256(content))
		mux.HandleFunc("GET "+at, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Cache-Control", "no-cache") // revalidate: another version of pglimit may serve another page
			w.Header().Set("ETag", tag)
			http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
		})
		return nil
	})
}
