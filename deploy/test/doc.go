// Package deploy tests deploy/chart and docs/kubernetes.md: by Helm's own packages, by the types
// of Kubernetes, and by the command, which runs as the chart's containers do. It is a module of
// its own, so that nothing else builds with those.
package deploy
