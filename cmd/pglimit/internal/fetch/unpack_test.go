package fetch

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var small = limits{archive: 1 << 20, content: 1000, entries: 10}

// entry is an entry of a tar file.
type entry struct {
	kind       byte
	name, link string
	content    string
	mode       int64
}

func tarOf(t *testing.T, entries ...entry) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if e.mode == 0 {
			e.mode = 0o644
		}
		h := &tar.Header{Typeflag: e.kind, Name: e.name, Linkname: e.link, Mode: e.mode, Size: int64(len(e.content))}
		if e.kind == tar.TypeXGlobalHeader {
			h = &tar.Header{Typeflag: e.kind, PAXRecords: map[string]string{"comment": "none"}}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// place has a directory to unpack into and a neighbour that must stay as it is.
func place(t *testing.T) (root *os.Root, dir string, check func()) {
	t.Helper()
	parent := t.TempDir()
	dir = filepath.Join(parent, "server")
	outside := filepath.Join(parent, "outside")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(outside, 0o700), os.WriteFile(filepath.Join(outside, "file"), []byte("untouched"), 0o600)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, dir, func() {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(outside, "file"))
		if err != nil || string(text) != "untouched" {
			t.Errorf("the file outside is %q, %v", text, err)
		}
		for dir, want := range map[string]int{parent: 2, outside: 1} {
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != want {
				t.Errorf("%s holds %v, %v; want %d", dir, entries, err, want)
			}
		}
	}
}

// TestUntarStaysInside unpacks archives that try to leave their directory.
func TestUntarStaysInside(t *testing.T) {
	t.Parallel()
	file := func(name string) entry { return entry{kind: tar.TypeReg, name: name, content: "evil"} }
	link := func(name, to string) entry { return entry{kind: tar.TypeSymlink, name: name, link: to} }
	dir := func(name string) entry { return entry{kind: tar.TypeDir, name: name} }
	for name, entries := range map[string][]entry{
		"parent":                        {file("../outside/file")},
		"parent, later":                 {file("bin/../../outside/file")},
		"absolute":                      {file("/outside/file")},
		"backslashes":                   {file(`..\outside\file`)},
		"no name":                       {file(".")},
		"directory outside":             {dir("../outside/new")},
		"link outside":                  {link("out", "../outside")},
		"absolute link":                 {link("out", "/etc")},
		"write through a link":          {link("out", "../outside"), file("out/file")},
		"write through an absolute one": {link("out", os.TempDir()), file("out/file")},
		"link by way of a link":         {link("here", "."), link("here/out", "../outside"), file("out/file")},
		"link over a link":              {link("a", "b"), link("b", "../outside"), file("a/file")},
		"file over a link":              {file("b"), link("a", "b"), file("a")},
		"link to nothing":               {link("a", "b")},
		"link to itself":                {link("a", "a")},
		"hard link outside":             {{kind: tar.TypeLink, name: "in", link: "../outside/file"}},
		"absolute hard link":            {{kind: tar.TypeLink, name: "in", link: "/etc/passwd"}},
		"hard link through a link":      {link("here", "."), link("here/out", "../outside"), {kind: tar.TypeLink, name: "in", link: "out/file"}},
		"the same twice":                {file("a"), file("a")},
		"device":                        {{kind: tar.TypeChar, name: "null"}},
		"named pipe":                    {{kind: tar.TypeFifo, name: "pipe"}},
		"too large":                     {{kind: tar.TypeReg, name: "a", content: strings.Repeat("x", 600)}, {kind: tar.TypeReg, name: "b", content: strings.Repeat("x", 600)}},
		"too many":                      {dir("1"), dir("2"), dir("3"), dir("4"), dir("5"), dir("6"), dir("7"), dir("8"), dir("9"), dir("10"), dir("11")},
	} {
		root, _, check := place(t)
		if err := untar(t.Context(), tarOf(t, entries...), root, small); err == nil {
			t.Errorf("%s: it was unpacked", name)
		}
		check()
	}
}

func TestUntar(t *testing.T) {
	t.Parallel()
	root, dir, check := place(t)
	err := untar(t.Context(), tarOf(t,
		entry{kind: tar.TypeXGlobalHeader},
		entry{kind: tar.TypeDir, name: "./"},
		entry{kind: tar.TypeReg, name: "./bin/postgres", content: "program", mode: 0o6777},
		entry{kind: tar.TypeReg, name: "lib/libpq.so.5", content: "library", mode: 0o666},
		entry{kind: tar.TypeSymlink, name: "lib/libpq.so", link: "libpq.so.5"},
		entry{kind: tar.TypeSymlink, name: "bin/lib", link: "../lib"},
		entry{kind: tar.TypeLink, name: "share/copy", link: "lib/libpq.so.5"},
	), root, small)
	if err != nil {
		t.Fatal(err)
	}
	check()
	for name, want := range map[string]string{"bin/postgres": "program", "lib/libpq.so": "library", "bin/lib/libpq.so": "library", "share/copy": "library"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != want {
			t.Errorf("%s is %q, %v", name, text, err)
		}
	}
	for name, want := range map[string]fs.FileMode{"bin/postgres": fileMode(true), "lib/libpq.so.5": fileMode(false), "bin": dirMode() | fs.ModeDir} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := untar(ctx, tarOf(t, entry{kind: tar.TypeDir, name: "late"}), root, small); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v", err)
	}
}

// TestUnpackRefuses tries jar files that have no server.
func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	jar := func(names ...string) []byte {
		var b bytes.Buffer
		w := zip.NewWriter(&b)
		for _, name := range names {
			f, err := w.Create(name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write(bytes.Repeat([]byte("x"), 2000)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	for name, c := range map[string]struct {
		jar  []byte
		l    limits
		want string
	}{
		"no zip":        {[]byte("<html>"), small, "zip"},
		"empty":         {jar(), small, "no .txz"},
		"no .txz":       {jar("../outside/file", "META-INF/MANIFEST.MF"), small, "no .txz"},
		"two":           {jar("a.txz", "b.txz"), small, "several"},
		"too large":     {jar("a.txz"), limits{archive: 1000, content: 1, entries: 1}, "larger than 1000"},
		"no compressed": {jar("../outside/a.txz"), small, "xz"},
	} {
		_, dir, check := place(t)
		err := unpack(t.Context(), bytes.NewReader(c.jar), int64(len(c.jar)), dir, c.l)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		check()
	}
}
