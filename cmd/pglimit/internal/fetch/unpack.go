package fetch

import (
	"archive/tar"
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/xi2/xz"
)

// limits bound what an archive may contain.
type limits struct {
	archive int64 // bytes of the archive, and of the compressed file in it
	content int64 // bytes of all files together
	entries int
}

// realLimits are several times what the largest archive needs.
var realLimits = limits{archive: longestArchive, content: 1 << 30, entries: 20_000}

// unpack unpacks the server in a jar file, a zip with one compressed tar file, into dir.
func unpack(ctx context.Context, jar io.ReaderAt, size int64, dir string, l limits) error {
	inner, err := openInner(jar, size, l)
	if err != nil {
		return err
	}
	defer inner.Close()
	decoded, err := xz.NewReader(io.LimitReader(inner, l.archive), 0)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := untar(ctx, decoded, root, l); err != nil {
		return err
	}
	for _, program := range []string{"initdb", "postgres"} {
		info, err := root.Stat("bin/" + program)
		if errors.Is(err, fs.ErrNotExist) {
			info, err = root.Stat("bin/" + program + ".exe")
		}
		if err != nil || !info.Mode().IsRegular() {
			return fmt.Errorf("it has no program %s", program)
		}
	}
	return nil
}

// openInner opens the only .txz file of a jar.
func openInner(jar io.ReaderAt, size int64, l limits) (io.ReadCloser, error) {
	z, err := zip.NewReader(jar, size)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // no name of the zip is used
		return nil, err
	}
	var found *zip.File
	for _, f := range z.File {
		if !strings.HasSuffix(f.Name, ".txz") || f.FileInfo().IsDir() {
			continue
		}
		if found != nil {
			return nil, errors.New("it has several .txz files")
		}
		found = f
	}
	switch {
	case found == nil:
		return nil, errors.New("it has no .txz file")
	case found.UncompressedSize64 > uint64(l.archive):
		return nil, fmt.Errorf("its .txz file is larger than %d bytes", l.archive)
	}
	return found.Open()
}

// untar unpacks a tar file below root. Root follows no link that leaves it; what cannot be
// in a server's archive is an error.
func untar(ctx context.Context, r io.Reader, root *os.Root, l limits) error {
	in := tar.NewReader(r)
	left := l.content
	var links []string
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return err
		}
		if n >= l.entries {
			return fmt.Errorf("it has more than %d entries", l.entries)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		name, err := local(h.Name)
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeDir {
			if err := root.MkdirAll(filepath.Dir(name), dirMode()); err != nil {
				return fmt.Errorf("%q: %w", h.Name, err)
			}
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, dirMode())
		case tar.TypeReg:
			if h.Size > left {
				return fmt.Errorf("its files are larger than %d bytes", l.content)
			}
			left -= h.Size
			err = writeFile(root, name, in, h.FileInfo().Mode()&0o100 != 0)
		case tar.TypeSymlink:
			if path.IsAbs(h.Linkname) || filepath.IsAbs(h.Linkname) {
				return fmt.Errorf("%q links to %q, which is outside", h.Name, h.Linkname)
			}
			if _, err := local(path.Join(path.Dir(path.Clean(h.Name)), h.Linkname)); err != nil {
				return fmt.Errorf("%q links to %q, which is outside", h.Name, h.Linkname)
			}
			links = append(links, name)
			err = root.Symlink(filepath.FromSlash(h.Linkname), name)
		case tar.TypeLink:
			var target string
			if target, err = local(h.Linkname); err != nil {
				return fmt.Errorf("%q links to %q, which is outside", h.Name, h.Linkname)
			}
			err = root.Link(target, name)
		default:
			return fmt.Errorf("%q is neither a file, a directory nor a link", h.Name)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
	// A link may lead outside by way of another.
	for _, name := range links {
		if _, err := root.Stat(name); err != nil {
			return fmt.Errorf("%q is a link to nothing inside: %w", name, err)
		}
	}
	return nil
}

// local returns a name of an archive as a path below its directory.
func local(name string) (string, error) {
	p := filepath.FromSlash(path.Clean(name))
	if name == "" || path.IsAbs(name) || strings.Contains(name, `\`) || !filepath.IsLocal(p) {
		return "", fmt.Errorf("%q is outside of the server's directory", name)
	}
	return p, nil
}

// writeFile creates a file, which must not be there yet.
func writeFile(root *os.Root, name string, content io.Reader, executable bool) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode(executable))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
