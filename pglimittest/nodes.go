package pglimittest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// node is a node of a Citus cluster, as the others reach it.
type node struct {
	host string
	port uint16
}

// Workers returns the workers of a Citus cluster, whose coordinator is s; nil for any other
// server. A worker's URL, Stop, Kill and Restart are as those of s. Create databases by s,
// which creates them on all nodes.
func (s *Server) Workers() []*Server { return s.workers }

// findNodes reads the nodes of the cluster whose coordinator s is.
func (s *Server) findNodes(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var citus bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass('pg_catalog.pg_dist_node') IS NOT NULL").Scan(&citus); err != nil {
		return err
	}
	if citus {
		rows, err := conn.Query(ctx, "SELECT nodename, nodeport FROM pg_dist_node WHERE noderole = 'primary' ORDER BY groupid") // the coordinator's is 0
		if err != nil {
			return err
		}
		s.nodes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (n node, err error) {
			var port int32
			err = row.Scan(&n.host, &port)
			n.port = uint16(port)
			return n, err
		})
		if err != nil {
			return err
		}
	}
	if len(s.nodes) < 2 {
		return fmt.Errorf("%s is %s, but this is not the coordinator of workers: name another server, or unset %[1]s", envBackend, kindCitus)
	}
	for _, n := range s.nodes[1:] {
		address, err := nodeURL(s.URL(), n)
		if err != nil {
			return err
		}
		b, err := startURL(address)
		if err != nil {
			return err
		}
		s.workers = append(s.workers, &Server{kind: s.kind, backend: b, ending: lasting{}, version: s.version, number: s.number})
	}
	return nil
}

// nodeURL returns address with another node.
func nodeURL(address string, n node) (string, error) {
	if !isURL(address) {
		host := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(n.host)
		return fmt.Sprintf("%s host='%s' port=%d", address, host, n.port), nil
	}
	u, err := parseURL(address)
	if err != nil {
		return "", err
	}
	u.Host = ""
	query := u.Query()
	query.Set("host", n.host)
	query.Set("port", strconv.Itoa(int(n.port)))
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// servers returns the URLs of all nodes, the coordinator's first.
func (s *Server) servers() []string {
	urls := []string{s.URL()}
	for _, w := range s.workers {
		urls = append(urls, w.URL())
	}
	return urls
}

// seal makes a database refuse connections. On a cluster it ends those that Citus keeps, too.
func (s *Server) seal(ctx context.Context, name string) error {
	err := s.exec(ctx, "ALTER DATABASE "+quote(name)+" ALLOW_CONNECTIONS false")
	if err == nil && len(s.workers) > 0 {
		err = s.exec(ctx, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = $1", name)
	}
	return err
}

// everywhere runs one statement in several databases at once.
func everywhere(ctx context.Context, urls []string, sql string, args ...any) error {
	errs := make([]error, len(urls))
	var running sync.WaitGroup
	for i, address := range urls {
		running.Go(func() { errs[i] = execOn(ctx, address, sql, args...) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// joinAlone joins databases of the server's nodes while no other process joins some. To add a
// node, Citus sends it all roles; it fails if another of its databases gets them at that time.
func (s *Server) joinAlone(ctx context.Context, urls []string) error {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // which unlocks
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended('pglimit test: join', 0))"); err != nil {
		return err
	}
	return join(ctx, urls, s.nodes)
}

// join makes one cluster of databases, one on each node, the coordinator's first.
func join(ctx context.Context, urls []string, nodes []node) error {
	if err := everywhere(ctx, urls, "CREATE EXTENSION citus"); err != nil {
		return err
	}
	for i, n := range nodes {
		sql := "SELECT citus_add_node($1, $2)"
		if i == 0 {
			sql = "SELECT citus_set_coordinator_host($1, $2)"
		}
		if err := execOn(ctx, urls[0], sql, n.host, int(n.port)); err != nil {
			return err
		}
	}
	return nil
}
