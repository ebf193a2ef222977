package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// WithNextStep returns err with the next step that [NewFailure] shows.
func WithNextStep(err error, next string) error { return steppedError{err.Error(), next, err} }

type steppedError struct {
	text, next string
	error
}

func (e steppedError) Error() string    { return e.text }
func (e steppedError) Unwrap() error    { return e.error }
func (e steppedError) NextStep() string { return e.next }

// unconnected returns an error with the causes of failed, each once, with its addresses: pgx
// tries each address of each host, with TLS and without.
func unconnected(failed *pgconn.ConnectError) error {
	var causes []string
	at := map[string][]string{}
	next := ""
	for _, err := range attempts(failed.Unwrap()) {
		address, _, found := strings.Cut(err.Error(), " (")
		if !found || strings.Contains(address, " ") {
			address = ""
		}
		cause, step := causeOf(err)
		if at[cause] == nil {
			causes, at[cause] = append(causes, cause), []string{}
		}
		if address != "" && !slices.Contains(at[cause], address) {
			at[cause] = append(at[cause], address)
		}
		if next == "" || errors.As(err, new(*pgconn.PgError)) { // a server's answer says most
			next = step
		}
	}
	if len(causes) > 1 {
		causes = slices.DeleteFunc(causes, func(c string) bool { return c == noTLS })
	}
	for i, c := range causes {
		if len(at[c]) > 0 {
			causes[i] += " at " + strings.Join(at[c], " and ")
		}
	}
	c := failed.Config
	text := fmt.Sprintf("%s: cannot connect to database %s as %s", strings.Join(causes, "; "), c.Database, c.User)
	return steppedError{text, next, failed}
}

// attempts returns the errors that err joins.
func attempts(err error) []error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return all.Unwrap()
	}
	return []error{err}
}

// noTLS is the cause if a server refuses TLS. pgx then tries without, unless sslmode forbids it.
const noTLS = "the server refuses TLS"

// steps are next steps by the SQLSTATE of a server's answer.
var steps = map[string]string{
	"28P01": "correct the password in DATABASE_URL, in PGPASSWORD or in ~/.pgpass",
	"28000": "correct the role in DATABASE_URL, or let it log in: by ALTER ROLE … LOGIN, or in the server's pg_hba.conf",
	"3D000": "correct the database's name in DATABASE_URL, or run CREATE DATABASE",
	"42704": "correct or remove that setting in DATABASE_URL",
	"42501": "GRANT CONNECT ON DATABASE to the role",
	"53300": "close connections, or raise max_connections or the CONNECTION LIMIT; then try again",
	"08P01": "leave the setting that it names out of DATABASE_URL if PgBouncer answers; docs/operations.md has its settings",
	"57P03": "wait until the server has started, and try again",
}

// causeOf returns why an attempt failed, and the next step.
func causeOf(err error) (cause, next string) {
	var answer *pgconn.PgError
	var dns *net.DNSError
	var system *os.SyscallError
	text := err.Error()
	switch {
	case errors.As(err, &answer):
		next = "see the server's log"
		if step := steps[answer.Code]; step != "" {
			next = step
		}
		return fmt.Sprintf("%s (SQLSTATE %s)", answer.Message, answer.Code), next
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host " + dns.Name, "correct the host in DATABASE_URL"
	case strings.Contains(text, "server refused TLS connection"):
		return noTLS, "turn ssl on at the server, or end the connection string in sslmode=disable if the network is trusted"
	case pgconn.Timeout(err), errors.Is(err, context.DeadlineExceeded):
		return "no answer in time", "check the host and the port in DATABASE_URL, and the firewalls on the way"
	case errors.Is(err, syscall.ENOENT):
		return "no such socket", "start the server, or name the directory of its socket as the host"
	case errors.As(err, &system):
		return system.Err.Error(), "start the server, or correct the host and the port in DATABASE_URL"
	}
	if _, rest, found := strings.Cut(text, "): "); found {
		text = rest
	}
	return text, "check DATABASE_URL, and see the server's log"
}
