package exec

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/internal/store"
)

// The SQLSTATEs of a server that answers, but refuses until someone changes a setting.
const (
	insufficientPrivilege = "42501"
	noSuchDatabase        = "3D000"
	readOnlyTransaction   = "25006"
	featureNotSupported   = "0A000"
	invalidSchema         = "3F000"
	invalidAuthorization  = "28" // a class: a wrong password, no such role, pg_hba.conf
	syntaxOrAccess        = "42" // a class: the statement does not fit the tables
)

// The next steps.
var (
	errLogin    = errors.New("the login is refused: correct the user and password in the database's URL, or let pg_hba.conf admit it")
	errDatabase = errors.New("correct the database's name in the URL, or create the database")
	errThrough  = errors.New("the pooler refuses the login: correct the URL, or the pooler's users, databases and ignore_startup_parameters")
	errReadOnly = errors.New("the server, role or session is read-only: connect to the primary (several hosts and " +
		"target_session_attrs=read-write in the URL find it), and leave default_transaction_read_only off")
	errReadOnlyTx = errors.New("the transaction is read-only: begin it read-write, on the primary")
	errTxFailed   = errors.New("the transaction has failed: roll it back")
	errStatement  = errors.New("the statement does not fit this server or its tables: use PostgreSQL 13 or later, and compare `pglimit migrate status`")
)

// nextStep returns what to do about an error of a server that answered and refuses every
// such statement, or nil for any other error.
func nextStep(err error, inTx bool) error {
	code := sqlState(err)
	class := code[:min(2, len(code))]
	switch {
	case pooler.Lost(err) && inTx:
		return fmt.Errorf("%w; %w", errTxFailed, pooler.ErrStatements)
	case pooler.Lost(err):
		return pooler.ErrStatements
	case pooler.Refused(err):
		return errThrough
	case class == invalidAuthorization:
		return errLogin
	case code == noSuchDatabase:
		return errDatabase
	case code == readOnlyTransaction && inTx:
		return errReadOnlyTx
	case code == readOnlyTransaction:
		return errReadOnly
	case code == insufficientPrivilege:
		return grant(err)
	case class == syntaxOrAccess, code == featureNotSupported, code == invalidSchema:
		return errStatement
	}
	return nil
}

// denied is the server's message about a missing right, in English.
var denied = regexp.MustCompile(`(permission denied for|row-level security policy for) (\w+) "?([^"\s]+)"?`)

// grant returns the GRANT that is missing, as far as the server's message names it.
func grant(err error) error {
	const all = "`pglimit migrate grants` prints all that it needs"
	found := denied.FindStringSubmatch(err.Error())
	if found == nil {
		return errors.New("grant this program's role SELECT, INSERT, UPDATE and DELETE on pglimit's tables: " + all)
	}
	kind, name := found[2], found[3]
	switch {
	case found[1] != "permission denied for":
		return fmt.Errorf("a row-level security policy refuses this program's role on %s: disable row-level security there, or add a policy for the role", name)
	case kind == "table", kind == "relation":
		return fmt.Errorf("grant this program's role SELECT, INSERT, UPDATE and DELETE on %s: %s", name, all)
	case kind == "database":
		return fmt.Errorf("grant this program's role CONNECT on database %s: %s", name, all)
	case kind == "schema":
		return fmt.Errorf("grant this program's role USAGE on schema %s: %s", name, all)
	case kind == "function":
		return fmt.Errorf("grant this program's role EXECUTE on function %s: %s", name, all)
	}
	return fmt.Errorf("grant this program's role the right to use %s %s: %s", kind, name, all)
}

// refusedLogin reports whether the server refused the connection, not only a statement.
func refusedLogin(err error) bool {
	code := sqlState(err)
	return code == noSuchDatabase || code[:min(2, len(code))] == invalidAuthorization || pooler.Refused(err)
}

// misconfigured returns err as an ErrMisconfigured with its next step, or nil if it is
// none.
func misconfigured(err error, inTx bool) error {
	step := nextStep(err, inTx)
	if step == nil {
		return nil
	}
	return fmt.Errorf("%w: %w: %w", store.ErrMisconfigured, step, err)
}
