package commands

import (
	"runtime/debug"
	"testing"
)

// TestVersionsFromBuild: a release's version comes first, then what the Go tool recorded.
func TestVersionsFromBuild(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "v0.1.0"},
		Settings: []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "abc"}}}
	if got, want := fromBuild(info, true).text(), "pglimit v0.1.0 (abc)\ngo1.26.0\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := fromBuild(&debug.BuildInfo{GoVersion: "go1.26.0"}, true); got.Version != "(devel)" {
		t.Errorf("without a version: %+v", got)
	}
	defer func() { version = "" }()
	version = "v0.2.0"
	if got := fromBuild(info, true); got.Version != "v0.2.0" || got.Revision != "abc" {
		t.Errorf("of a release: %+v", got)
	}
	version = ""
	if got := fromBuild(nil, false); got.Version != "unknown" || got.Go != "unknown" {
		t.Errorf("without any information: %+v", got)
	}
}
