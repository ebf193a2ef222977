package main

import (
	"runtime/debug"
	"testing"
)

func TestBuilt(t *testing.T) {
	t.Parallel()
	info := &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "v0.1.0"},
		Settings: []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "abc"}}}
	if got, want := built(info, true).text(), "pglimit v0.1.0 (abc)\ngo1.26.0\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := built(&debug.BuildInfo{GoVersion: "go1.26.0"}, true); got.Version != "(devel)" {
		t.Errorf("without a version: %+v", got)
	}
	if got := built(nil, false); got.Version != "unknown" || got.Go != "unknown" {
		t.Errorf("without any information: %+v", got)
	}
}
