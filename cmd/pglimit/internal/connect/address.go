package connect

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
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
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, errors.New(unparsable(err))
	}
	for name := range config.ConnConfig.RuntimeParams {
		if !settingName.MatchString(name) { // such as "POSTGRES://app:password@host/shop?sslmode"
			return nil, errors.New("neither a URL that begins with postgres:// nor key=value pairs")
		}
	}
	return config, nil
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
	return cli.DatabaseError(cli.WithNextStep(errors.New("the server does not know a setting of the connection string; its name is not shown, because it may be a part of the password"),
		"in a URL write & as %26 and a space as %20, in key=value pairs put the password in single quotes"))
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

// redacted replaces a password.
const redacted = "…"

// minSecret is the shortest password that Redact looks for: shorter ones are in most words.
const minSecret = 4

// Redact returns an error's message without the passwords of the database that was opened,
// of args and of the environment, in case a library or a server quotes one. It finds them
// as they are, percent-encoded and with Go's escapes.
func (d *Database) Redact(message string, args []string) string {
	all := []string{d.password}
	for _, name := range []string{"PGPASSWORD", "PGSSLPASSWORD"} {
		all = append(all, os.Getenv(name))
	}
	for _, text := range append(slices.Clone(args), os.Getenv(databaseEnv)) {
		all = append(all, passwordsIn(text)...)
	}
	var forms []string
	for _, secret := range all {
		if len(secret) < minSecret {
			continue
		}
		quoted, ascii := strconv.Quote(secret), strconv.QuoteToASCII(secret)
		forms = append(forms, secret, url.QueryEscape(secret), url.PathEscape(secret), url.UserPassword("", secret).String()[1:],
			quoted[1:len(quoted)-1], ascii[1:len(ascii)-1])
	}
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) }) // a part of another one comes later
	for _, form := range forms {
		message = strings.ReplaceAll(message, form, redacted)
	}
	return message
}

// passwordsIn returns what may be a password in a connection string, or in a text that is
// similar to one, as written and decoded. The user of a URL is left out: it is shown anyway.
func passwordsIn(text string) (all []string) {
	user := ""
	if _, rest, ok := strings.Cut(text, ":/"); ok {
		rest = strings.TrimLeft(rest, "/")
		if end := strings.LastIndexByte(rest, '@'); end >= 0 {
			var password string
			user, password, _ = strings.Cut(rest[:end], ":")
			all = append(all, password)
		}
	}
	for rest := text; ; {
		at := strings.Index(strings.ToLower(rest), "password")
		if at < 0 {
			break
		}
		rest = rest[at+len("password"):]
		value := strings.TrimLeft(rest, spaces)
		if !strings.HasPrefix(value, "=") {
			continue
		}
		value = strings.TrimLeft(value[1:], spaces)
		raw, decoded := pairValue(value)
		all = append(all, raw, decoded)
		if end := strings.IndexAny(value, "&"+spaces); end >= 0 {
			value = value[:end]
		}
		all = append(all, value)
	}
	for _, p := range slices.Clone(all) {
		if decoded, err := url.QueryUnescape(p); err == nil {
			all = append(all, decoded)
		}
		if decoded, err := url.PathUnescape(p); err == nil {
			all = append(all, decoded)
		}
	}
	return slices.DeleteFunc(all, func(p string) bool { return p == user })
}

// spaces separate key=value pairs.
const spaces = " \t\n\r\v\f"

// pairValue returns the value at the start of text, of a key=value pair: as written, without
// quotes, and with its backslashes resolved.
func pairValue(text string) (raw, decoded string) {
	text, quoted := strings.CutPrefix(text, "'")
	var value strings.Builder
	i := 0
	for ; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
			value.WriteByte(text[i])
			continue
		case quoted && c == '\'', !quoted && strings.IndexByte(spaces, c) >= 0:
			return text[:i], value.String()
		default:
			value.WriteByte(c)
		}
	}
	return text, value.String()
}
