package pglimittest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/localpg"
)

// onCitus reports whether the server must be a Citus cluster.
func onCitus() bool { return os.Getenv(envBackend) == kindCitus }

// envWithout is the environment variable with what scripts/packages hides.
const envWithout = "PGLIMIT_TEST_WITHOUT"

// cluster is a Citus cluster started from programs on this machine. All nodes run as one
// user, so each reaches the sockets of the others, without a password.
type cluster struct {
	localServer // the coordinator
	workers     []localServer
}

// startCluster starts a coordinator and two workers, and joins their databases postgres,
// in which other processes find the nodes.
func startCluster(ctx context.Context, settings map[string]string) (_ *cluster, err error) {
	if strings.Contains(os.Getenv(envWithout), kindCitus) {
		return nil, fmt.Errorf("%s has %s", envWithout, kindCitus)
	}
	bindir, _, err := localpg.FindWith("citus")
	if err != nil {
		return nil, fmt.Errorf("%w: install Citus (https://docs.citusdata.com/en/stable/installation/multi_node.html), or set %s to the URL of a coordinator", err, envURL)
	}
	connections, err := strconv.Atoi(settings["max_connections"])
	if err != nil {
		return nil, fmt.Errorf("setting max_connections: %w", err)
	}
	all := map[string]string{
		"shared_preload_libraries":           "citus",
		"wal_level":                          "logical",                     // to move shards
		"max_prepared_transactions":          strconv.Itoa(2 * connections), // for two-phase commits
		"max_worker_processes":               "200",                         // each database keeps one
		"citus.max_client_connections":       "-1",                          // no separate limit
		"citus.enable_statistics_collection": "off",                         // it would call its makers
	}
	maps.Copy(all, settings)

	nodes, errs := make([]localServer, 3), make([]error, 3)
	var starting sync.WaitGroup
	for i := range nodes {
		starting.Go(func() { nodes[i], errs[i] = startNode(ctx, bindir, all) })
	}
	starting.Wait()
	c := &cluster{nodes[0], nodes[1:]}
	if err = errors.Join(errs...); err == nil {
		err = c.join(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	return c, nil
}

// startNode starts a server that can reach itself.
func startNode(ctx context.Context, bindir string, settings map[string]string) (localServer, error) {
	s, err := localpg.Start(ctx, localpg.Options{BinDir: bindir, Settings: settings})
	if err != nil {
		return localServer{}, err
	}
	config, err := pgx.ParseConfig(s.URL())
	if err == nil {
		err = execOn(ctx, s.URL(), "ALTER SYSTEM SET citus.local_hostname = '"+strings.ReplaceAll(config.Host, "'", "''")+"'")
	}
	if err == nil {
		err = execOn(ctx, s.URL(), "SELECT pg_reload_conf()")
	}
	return localServer{s}, err
}

func (c *cluster) join(ctx context.Context) error {
	var urls []string
	var nodes []node
	for _, l := range append([]localServer{c.localServer}, c.workers...) {
		config, err := pgx.ParseConfig(l.URL())
		if err != nil {
			return err
		}
		urls, nodes = append(urls, l.URL()), append(nodes, node{config.Host, config.Port})
	}
	return join(ctx, urls, nodes)
}

// Close ends the nodes that were started.
func (c *cluster) Close(ctx context.Context) (err error) {
	for _, l := range append([]localServer{c.localServer}, c.workers...) {
		if l.Server != nil {
			err = errors.Join(err, l.Close(ctx))
		}
	}
	return err
}

func (c *cluster) Describe() string {
	return fmt.Sprintf("Citus: a coordinator and %d workers of %s", len(c.workers), c.BinDir())
}
