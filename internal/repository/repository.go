// Package repository gives tests access to the command and files of this repository outside
// their module.
//
// go test caches a result until a file that the test read changes, but it records only
// files below the module's directory. So each module that tests files outside has a link
// to the repository's root, testdata/repository, and its tests read files through it.
package repository

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	link    = "testdata/repository"
	program = "github.com/pglimit/pglimit/cmd/pglimit"
)

// BuildCommand builds the command pglimit in dir and returns its path. Call it in a test,
// not in TestMain: go test records no files before the tests.
func BuildCommand(dir string) (path string, err error) {
	through, err := Root()
	if err != nil {
		return "", err
	}
	root, err := filepath.EvalSymlinks(through)
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "pglimit")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	if _, err := goTool(root, "build", "-o", path, program); err != nil {
		return "", err
	}
	return path, noteSources(root, through)
}

// noteSources makes go test record the command's sources, so that it runs the test again
// when one changes.
func noteSources(root, through string) error {
	const sources = `{{with .Module}}{{if .Main}}` +
		`{{.GoMod}}{{"\n"}}` +
		`{{range $.GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}` +
		`{{range $.EmbedFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}` +
		`{{end}}{{end}}`
	files, err := goTool(root, "list", "-deps", "-f", sources, program)
	if err != nil {
		return err
	}
	for file := range strings.Lines(files) {
		file, err := filepath.Rel(root, strings.TrimSpace(file))
		if err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(through, file)); err != nil {
			return err
		}
	}
	return nil
}

// goTool runs the Go tool in the workspace, even if the test runs without it.
func goTool(root string, args ...string) (stdout string, err error) {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(root, "go.work"))
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", fmt.Errorf("go %s: %w: %s", args[0], err, exit.Stderr)
	}
	return string(out), err
}

// Root returns the path of the repository through the module's link, below the module's directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		path := filepath.Join(dir, filepath.FromSlash(link))
		if _, err := os.Stat(filepath.Join(path, "go.work")); err == nil {
			return path, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no %s, a link to the repository's root, in the working directory or above", link)
		}
		dir = filepath.Dir(dir)
	}
}
