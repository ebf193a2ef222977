package localpg

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
)

const (
	// runPrefix begins the names of run directories. os.MkdirTemp adds up to ten digits.
	runPrefix  = "pglimit-pg-"
	runNameLen = len(runPrefix) + 10
	// socketPort is the port in the socket's name. Each server has its own directory.
	socketPort = 5432
)

// socketFits reports whether a server can have its socket in a run directory below dir.
// macOS has the shortest limit for the path of a socket, 103 bytes. The server's setting
// and the client's URL are lists with commas.
func (s *Server) socketFits(dir string) bool {
	const longest = 103 - len("/") - runNameLen - len("/.s.PGSQL.5432")
	return s.tcp || len(dir) <= longest && !strings.ContainsAny(dir, `",\`)
}

// choosePort returns the port to listen on.
func (s *Server) choosePort() (int, error) {
	if !s.tcp {
		return socketPort, nil
	}
	return FreePort()
}

// FreePort returns a port of 127.0.0.1 on which nothing listens now, for a program that is
// to listen there, once or again. It is below those that systems give to connections and to
// listeners on port 0, so only a program that asks for this port can take it meanwhile.
func FreePort() (port int, err error) {
	const from, ports, tries = 20_000, 10_000, 100
	for range tries {
		port = from + rand.IntN(ports)
		var l net.Listener
		if l, err = net.Listen("tcp4", fmt.Sprint("127.0.0.1:", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}

// listen returns the server's arguments for where it listens.
func (s *Server) listen() []string {
	if s.tcp {
		return []string{"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="}
	}
	return []string{
		"-c", "listen_addresses=",
		"-c", `unix_socket_directories="` + s.runDir + `"`,
		"-c", "unix_socket_permissions=0700", // the directory is closed to others already
	}
}

// listening returns nil once the server has written into its data directory that it listens
// on our port and accepts connections.
func (s *Server) listening() error {
	text, err := readIn(s.dataDir, "postmaster.pid", s.account)
	if err != nil {
		return err
	}
	const pid, port, status, length = 0, 3, 7, 8 // the lines of postmaster.pid
	lines := strings.Split(text, "\n")
	// A standby that answers reads is ready too.
	if len(lines) < length || !slices.Contains([]string{"ready", "standby"}, strings.TrimSpace(lines[status])) {
		return errors.New("the server does not report that it is ready")
	}
	if lines[pid] != strconv.Itoa(s.pid) || lines[port] != strconv.Itoa(s.port) {
		return fmt.Errorf("postmaster.pid is of process %s with port %s, not of ours, %d with port %d", lines[pid], lines[port], s.pid, s.port)
	}
	return nil
}
