package ratelimit

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit"
	"github.com/pglimit/pglimit/internal/must"
)

// loadOurs returns the limits of a file, a line each.
func loadOurs(text string) (string, error) {
	d, err := ratelimit.Parse("test.yaml", []byte(text))
	if err != nil {
		return "", err
	}
	c, err := ratelimit.NewConfig(false, d)
	if err != nil {
		return "", err
	}
	return c.Dump(), nil
}

// TestFilesLoadAlike checks which files are valid to both, and that both then have the same limits.
func TestFilesLoadAlike(t *testing.T) {
	const head = "domain: d\ndescriptors:\n"
	theirs := newTheirs(t, &clock{now: 1}, "load")
	for _, c := range []struct {
		text        string
		their, ours bool // valid
	}{
		{head, true, true},
		{"domain: d\n", true, true},
		{head + "- key: a\n", true, true},
		{head + "- key: a\n  rate_limit:\n", true, true},
		{head + "- key: a\n  value: 1\n  rate_limit: {unit: SECOND, requests_per_unit: 10}\n", true, true},
		{head + "- key: a\n  value: true\n  shadow_mode: yes\n  rate_limit: {unit: Week}\n", true, true},
		{head + "- key: a\n  rate_limit: &r {unit: day, requests_per_unit: 1}\n- key: b\n  rate_limit: {<<: *r, requests_per_unit: 2}\n", true, true},
		{head + "- key: a\n  rate_limit: {unlimited: true, requests_per_unit: 5}\n", true, true},
		{head + "- key: a\n- key: a\n  value: b\n", true, true},
		{"", false, false},
		{"descriptors: []\n", false, false},
		{head + "- value: a\n", false, false},
		{head + "- key: a\n- key: a\n", false, false},
		{head + "- key: a_b\n- key: a\n  value: b\n", false, false},
		{head + "- key: a\n  rate_limit: {}\n", false, false},
		{head + "- key: a\n  rate_limit: {unit: fortnight}\n", false, false},
		{head + "- key: a\n  rate_limit: {unit: unknown}\n", false, false},
		{head + "- key: a\n  rate_limit: {unit: day, unlimited: true}\n", false, false},
		{head + "- key: a\n  rate_limit: {unit: day, requests_per_unit: -1}\n", false, false},
		{head + "- key: a\n  rate_limit: {unit: day, name: n, replaces: [{name: n}]}\n", false, false},
		{head + "- key: a\n  rate_limit: {unit: day, replaces: [{}]}\n", false, false},
		{head + "- key: a\n  value: b\n  share_threshold: true\n", false, false},
		{head + "- key: a\n  limit: {}\n", false, false},
		{head + "- a\n", false, false},
		{head + "  - [\n", false, false},
		// Ours refuses what theirs ignores:
		{head + "- key: a\n  rate_limit: {unit: day, shadow_mode: true}\n", true, false},
		{head + "- key: a\n  unit: day\n", true, false},
		{head + "- key: a\n  key: b\n", true, false},
		{head + "- key: a\n  rate_limit: {unit: never, unlimited: true}\n", true, false},
		{head + "- key: a\n  rate_limit: {unit: day, requests_per_unit: 0.5}\n", false, false},
		{head + "- key: a\n  rate_limit: {unit: day, requests_per_unit: 0100}\n", true, false},
		// and takes a number with a fraction as a value.
		{head + "- key: a\n  value: 1.5\n", false, true},
	} {
		config, err := theirs.load(c.text)
		limits, ourErr := loadOurs(c.text)
		if (err == nil) != c.their || (ourErr == nil) != c.ours {
			t.Errorf("%s: theirs %v, ours %v; want theirs to be valid %t, ours %t", c.text, err, ourErr, c.their, c.ours)
		} else if c.their && c.ours {
			same(t, c.text, config.Dump(), limits)
		}
	}
}

// same compares the limits of a file.
func same(t *testing.T, name, theirs, ours string) {
	t.Helper()
	lines := slices.Sorted(strings.Lines(theirs))
	if theirs = strings.Join(lines, ""); theirs != ours {
		t.Errorf("%s: theirs\n%sours\n%s", name, theirs, ours)
	}
}

// TestSamples checks that sample configurations load: those of envoyproxy/ratelimit, and ours in
// the shapes that gateways write.
func TestSamples(t *testing.T) {
	dir := must.OK(exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/envoyproxy/ratelimit").Output())(t)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "examples/ratelimit/config/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("envoyproxy/ratelimit has no examples: %v", err)
	}
	more, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(more) == 0 {
		t.Fatalf("testdata has no samples: %v", err)
	}
	theirs := newTheirs(t, &clock{now: 1}, "samples")
	for _, file := range append(files, more...) {
		text := must.OK(os.ReadFile(file))(t)
		config, err := theirs.load(string(text))
		limits, ourErr := loadOurs(string(text))
		if err != nil || ourErr != nil || limits == "" {
			t.Errorf("%s: theirs %v, ours %v, limits %q", file, err, ourErr, limits)
			continue
		}
		same(t, file, config.Dump(), limits)
	}
}
