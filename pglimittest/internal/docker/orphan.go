package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/moby/moby/client"
)

// ownerLabel has the process that started a container. If that process was killed, the
// next run removes the container. Without /proc (outside Linux), containers have no label
// and only Ryuk removes them.
const ownerLabel = "com.github.pglimit.owner"

// system identifies this boot of this machine and the process namespace. It is empty if
// unknown.
func system() string {
	boot, err1 := os.ReadFile("/proc/sys/kernel/random/boot_id")
	namespace, err2 := os.Readlink("/proc/self/ns/pid")
	if err1 != nil || err2 != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + "/" + namespace
}

func ownerLabels() map[string]string {
	sys := system()
	if sys == "" {
		return nil
	}
	return map[string]string{ownerLabel: fmt.Sprint(sys, "/", os.Getpid())}
}

// orphaned reports whether the label is of a process of this system that has ended. If
// another process has its number by now, the container stays until that one has ended too.
func orphaned(label string) bool {
	sys := system()
	pid, ours := strings.CutPrefix(label, sys+"/")
	if sys == "" || !ours {
		return false
	}
	_, err := os.Stat("/proc/" + pid)
	return errors.Is(err, fs.ErrNotExist)
}

// removeOrphans removes containers whose process has ended.
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
