package connect

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
)

// parse parses a connection string. Its errors quote nothing, because with broken syntax
// any part may be the password. It refuses strings that can be parsed, but only with a
// part of a password as the host, the database or a setting.
func parse(address string) (*pgxpool.Config, error) {
	if err := checkSigns(address); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, errors.New(unparsable(err))
	}
	for name := range cfg.ConnConfig.RuntimeParams {
		if !settingName.MatchString(name) { // such as "POSTGRES://app:password@host/shop?sslmode"
			return nil, errors.New("neither a URL that begins with postgres:// nor key=value pairs")
		}
	}
	return cfg, nil
}

// settingName matches the names of PostgreSQL's settings.
var settingName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

// checkSigns returns an error for a URL with an @ that does not separate the user and
// password from the host. An unencoded @, /, ? or # in a password causes one.
func checkSigns(address string) error {
	for _, scheme := range []string{"postgres://", "postgresql://"} {
		rest, isURL := strings.CutPrefix(address, scheme)
		if !isURL {
			continue
		}
		authority := rest
		if end := strings.IndexAny(rest, "/?#"); end >= 0 {
			authority = rest[:end]
		}
		if strings.Count(rest, "@") > 1 || strings.Count(rest, "@") != strings.Count(authority, "@") {
			return errors.New("an @ that is not before the host; in a password write @ as %40, / as %2F, ? as %3F, # as %23 and % as %25, elsewhere @ as %40")
		}
	}
	return nil
}

// withoutSetting returns err without the name of a setting that the server does not know,
// if the connection string has a password. A password with an unencoded & or space is read
// as a shorter password and such a setting.
func withoutSetting(err error, address string, c *pgx.ConnConfig) error {
	const undefinedObject = "42704"
	var answer *pgconn.PgError
	hasPassword := c.Password != "" || strings.Contains(strings.ToLower(address), "password")
	if !hasPassword || !errors.As(err, &answer) || answer.Code != undefinedObject {
		return err
	}
	return cli.DatabaseError(errors.New("connect: the server does not know a setting of the connection string; " +
		"its name is not shown, because it may be a part of the password: in a URL write & as %26 and a space as %20, in key=value pairs put the password in single quotes"))
}

// Describe returns the name, address and user of pool's database, without the password.
func Describe(pool *pgxpool.Pool) string { return describe(pool.Config().ConnConfig) }

// describe returns the database's name, address and user, without the password.
func describe(c *pgx.ConnConfig) string {
	at := net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	if strings.HasPrefix(c.Host, "/") { // a socket's directory
		at = fmt.Sprintf("%s port %d", c.Host, c.Port)
	}
	return fmt.Sprintf("%s at %s as %s", cmp.Or(c.Database, c.User), at, c.User)
}

// reasons are the beginnings of pgx's reasons why a connection string cannot be parsed.
// The rest of a reason may quote a value, which may be a part of a password.
var reasons = []string{
	"failed to parse as URL", "failed to parse as keyword/value", "failed to read service",
	"invalid sslcertmode", "invalid connect_timeout", "invalid port", "failed to configure TLS", "invalid require_auth",
	"unknown target_session_attrs value", "invalid min_protocol_version", "invalid max_protocol_version",
	"min_protocol_version cannot be greater than max_protocol_version", "unknown channel_binding value",
	"cannot parse statement_cache_capacity", "cannot parse description_cache_capacity", "invalid default_query_exec_mode",
	"cannot parse pool_max_conns", "pool_max_conns too small", "cannot parse pool_min_conns", "cannot parse pool_min_idle_conns",
	"cannot parse pool_max_conn_lifetime_jitter", "cannot parse pool_max_conn_lifetime", "cannot parse pool_max_conn_idle_time",
	"cannot parse pool_health_check_period", "cannot parse pool_ping_timeout",
}

// unparsable returns why a connection string cannot be parsed. It quotes nothing,
// because with broken syntax any part may be the password.
func unparsable(err error) string {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		blank := *parse
		blank.ConnString = ""
		text := strings.TrimPrefix(blank.Error(), "cannot parse ``: ")
		for _, reason := range reasons {
			if strings.HasPrefix(text, reason) {
				return reason
			}
		}
	}
	return "not a connection string"
}
