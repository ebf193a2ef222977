package ratelimit

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// put writes files below a directory, each at once, and then makes symbolic links of those that
// begin with ->.
func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	next := filepath.Join(dir, "next")
	for _, links := range []bool{false, true} {
		for name, text := range files {
			target, link := strings.CutPrefix(text, "->")
			if link != links {
				continue
			}
			path := filepath.Join(dir, name)
			err := os.MkdirAll(filepath.Dir(path), 0o755)
			switch {
			case err != nil:
			case link:
				err = os.Symlink(target, next)
			default:
				err = os.WriteFile(next, []byte(text), 0o600)
			}
			if err == nil {
				err = os.Rename(next, path)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func oneLimit(domain string) string {
	return "domain: " + domain + "\ndescriptors: [{key: k, rate_limit: {unit: day}}]\n"
}

// TestFiles checks which files are read.
func TestFiles(t *testing.T) {
	t.Parallel()
	all := map[string]string{
		"sub/config/a.yaml": oneLimit("a"), "sub/config/deep/b": oneLimit("b"), "sub/config/.hidden": oneLimit("hidden"), "sub/config/.h/c": oneLimit("h"),
		"sub/config/..2026/d": oneLimit("made by Kubernetes"), "sub/config/..data": "->..2026", "sub/config/d": "->..data/d",
		"sub/other/e": "not YAML: [", "sub/config.yaml": oneLimit("beside"), "sub/e": "[", "f": "[",
	}
	for name, c := range map[string]struct {
		files Files
		want  []string
	}{
		"below config":    {Files{AppDirectory: "config"}, []string{"a", "b", "h", "hidden", "made by Kubernetes"}},
		"and beside it":   {Files{AppDirectory: "config", WatchRoot: true}, []string{"a", "b", "beside", "h", "hidden", "made by Kubernetes"}},
		"without dots":    {Files{AppDirectory: "config", IgnoreDotFiles: true}, []string{"a", "b", "made by Kubernetes"}},
		"a deeper folder": {Files{AppDirectory: "config/deep"}, nil},
	} {
		c.files.Root, c.files.Subdirectory = t.TempDir(), "sub"
		put(t, c.files.Root, all)
		got, _, err := c.files.Load()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if domains := slices.Sorted(maps.Keys(got.domains)); !slices.Equal(domains, c.want) {
			t.Errorf("%s: domains %q, want %q", name, domains, c.want)
		}
	}
	root := t.TempDir()
	put(t, root, map[string]string{"one.yaml": oneLimit("one"), "deep/two": oneLimit("two"), "bad": "["})
	for path, want := range map[string]string{"": "bad", "one.yaml": "one", "deep": "two", "bad": "bad", "none": "none"} {
		var e Env
		e.ReadFrom(filepath.Join(root, path))
		got, _, err := e.Files().Load()
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && got.domains[want] == nil {
			t.Errorf("%q: %v, error %v; want %s", path, got, err, want)
		}
	}
	for want, f := range map[string]Files{
		"RUNTIME_SUBDIRECTORY": {Root: "x", AppDirectory: "config"},
		"no such file":         {Root: t.TempDir(), Subdirectory: "sub", AppDirectory: "config"},
	} {
		if _, _, err := f.Load(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %s", f, err, want)
		}
	}
}

// TestFollow checks that changes are used, and that what is not valid is not.
func TestFollow(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s, ticks := server(t, oneLimit("first"), Options{NeedConfig: true}), make(chan time.Time)
	s.healthy.Store(false)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		s.Follow(ctx, Files{Root: filepath.Join(root, "current"), Subdirectory: "rl", AppDirectory: "config"}, ticks)
	})
	for i, step := range []struct {
		files        map[string]string
		domains      string
		loads, fails uint64
	}{
		{nil, "first", 0, 1},
		{map[string]string{"v1/rl/config/a.yaml": oneLimit("a"), "current": "->v1"}, "a", 1, 1},
		{nil, "a", 1, 1},
		{map[string]string{"v1/rl/config/b.yaml": oneLimit("b")}, "a b", 2, 1},
		{map[string]string{"v1/rl/config/b.yaml": oneLimit("a")}, "a b", 2, 2}, // a domain twice
		{nil, "a b", 2, 2},
		{map[string]string{"v2/rl/config/a.yaml": oneLimit("c"), "current": "->v2"}, "c", 3, 2},
		{map[string]string{"current": "->v3"}, "c", 3, 3},
		{map[string]string{"current": "->v1"}, "c", 3, 4},
		{map[string]string{"current": "->v2"}, "c", 4, 4},
	} {
		put(t, root, step.files)
		ticks <- time.Time{}
		ticks <- time.Time{} // is received after the first was dealt with; what it reads is whole
		domains := strings.Join(slices.Sorted(maps.Keys(s.Config().domains)), " ")
		if loads, fails := s.metrics.configLoads.Load(), s.metrics.configErrors.Load(); domains != step.domains || loads != step.loads || fails != step.fails {
			t.Errorf("step %d: domains %s, %d loads, %d faults; want %s, %d, %d", i, domains, loads, fails, step.domains, step.loads, step.fails)
		}
		if s.healthy.Load() != (step.loads > 0) {
			t.Errorf("step %d: healthy %t", i, s.healthy.Load())
		}
	}
	cancel()
	running.Wait()
}
