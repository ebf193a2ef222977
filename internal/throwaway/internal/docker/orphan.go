package docker

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/moby/moby/client"
)

// Each container carries who started it, so that the next run can remove it
// if that process was killed before it could. Where /proc does not tell
// (outside Linux), containers carry nothing and Ryuk is relied upon.
const ownerLabel = "com.github.pglimit.owner"

// system names this boot of this machine and this view of its processes;
// empty where unknown.
func system() string {
	boot, err1 := os.ReadFile("/proc/sys/kernel/random/boot_id")
	namespace, err2 := os.Readlink("/proc/self/ns/pid")
	if err1 != nil || err2 != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + "/" + namespace
}

// process names a running process such that a later one with the same number
// has another name; empty if there is none.
func process(pid string) string {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const started = 22 - 3 // field 22, and these begin with field 3
	if len(fields) <= started {
		return ""
	}
	return pid + "/" + fields[started]
}

func ownerLabels() map[string]string {
	sys, proc := system(), process(fmt.Sprint(os.Getpid()))
	if sys == "" || proc == "" {
		return nil
	}
	return map[string]string{ownerLabel: sys + "/" + proc}
}

// orphaned tells whether the label is that of a process of this system which
// has ended.
func orphaned(label string) bool {
	sys := system()
	rest, ours := strings.CutPrefix(label, sys+"/")
	if sys == "" || !ours {
		return false
	}
	pid, _, _ := strings.Cut(rest, "/")
	return process(pid) != rest
}

// removeOrphans removes containers whose process has ended without doing so.
func removeOrphans(ctx context.Context, engine *client.Client, logf func(string, ...any)) {
	list, err := engine.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: make(client.Filters).Add("label", ownerLabel),
	})
	if err != nil {
		logf("list containers: %v", err)
		return
	}
	for _, c := range list.Items {
		if !orphaned(c.Labels[ownerLabel]) {
			continue
		}
		logf("removing container %.12s of a run that was killed", c.ID)
		if _, err := engine.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}); err != nil {
			logf("remove it: %v", err)
		}
	}
}
