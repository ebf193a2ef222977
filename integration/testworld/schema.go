package testworld

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
)

// The tests learn the tables from the database's catalogue and from the methods of package
// db, so that a new table or statement is tested at once.

// LimitTables lists the tables that hold limits: those with a key that expires, but for attempts, slots and balances, which have no level.
func LimitTables(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT c.relname FROM pg_class AS c
		WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND c.relname LIKE 'pglimit\_%' AND c.relname NOT IN ('pglimit_attempt', 'pglimit_slot', 'pglimit_balance')
		  AND (SELECT count(*) FROM pg_attribute AS a
		       WHERE a.attrelid = c.oid AND a.attname IN ('policy', 'key', 'expires_at_us', 'blocked_until_us')) = 4
		ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if len(tables) != len(algorithm.Tables) {
		t.Fatalf("%d tables hold limits: %q", len(tables), tables)
	}
	return tables
}

// NoRows expects every table of limits to be empty.
func NoRows(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	for _, table := range LimitTables(t, pool) {
		if n := Value[int](t, pool, `SELECT count(*) FROM `+table); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
}

// InsertRows inserts rows with the keys k1 to kn into a table of limits. Row i expires at
// expires plus i, in microseconds, and is empty.
func InsertRows(t testing.TB, pool *pgxpool.Pool, table, policy string, n int, expires int64) {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
		WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped`, table)
	if err != nil {
		t.Fatal(err)
	}
	var columns, values []string
	var column, kind string
	_, err = pgx.ForEachRow(rows, []any{&column, &kind}, func() error {
		value := map[string]string{"policy": "$1", "key": "'k' || i", "expires_at_us": "$3 + i"}[column]
		if value == "" {
			value = map[string]string{"bigint": "1", "integer": "NULL", "double precision": "0", "bigint[]": "'{}'", "double precision[]": "'{}'"}[kind]
		}
		if value == "" {
			return fmt.Errorf("no value for column %s of type %s", column, kind)
		}
		columns, values = append(columns, column), append(values, value)
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", table, err)
	}
	Exec(t, pool, fmt.Sprintf(`INSERT INTO %s (%s) SELECT %s FROM generate_series(1, $2::bigint) AS i`,
		table, strings.Join(columns, ", "), strings.Join(values, ", ")), policy, n, expires)
}

// Contents renders all rows of all tables of limits.
func Contents(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	var all []string
	for _, table := range LimitTables(t, pool) {
		all = append(all, Value[string](t, pool,
			`SELECT $1 || ' ' || coalesce(string_agg(r::text, ' ' ORDER BY r::text), 'no rows') FROM `+table+` AS r`, table))
	}
	return strings.Join(all, "\n")
}

// Schema describes all of pglimit's tables, indexes, constraints, views and functions in
// the current schema, however they were made; empty if there are none.
func Schema(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return Value[string](t, pool, `
		SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
			SELECT format('relation %s %s %s', c.relname, c.relkind, c.reloptions) AS line
			FROM pg_class AS c WHERE c.relnamespace = current_schema()::regnamespace AND c.relname LIKE 'pglimit\_%'
			UNION ALL
			SELECT format('column %s.%s %s %s %s', a.attrelid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
				(SELECT collname FROM pg_collation WHERE oid = a.attcollation))
			FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
			WHERE c.relnamespace = current_schema()::regnamespace AND c.relname LIKE 'pglimit\_%' AND c.relkind IN ('r', 'v') AND a.attnum > 0
			UNION ALL
			SELECT format('index %s', pg_get_indexdef(i.indexrelid))
			FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
			WHERE c.relnamespace = current_schema()::regnamespace AND c.relname LIKE 'pglimit\_%'
			UNION ALL
			SELECT format('constraint %s %s', o.conname, pg_get_constraintdef(o.oid))
			FROM pg_constraint AS o JOIN pg_class AS c ON c.oid = o.conrelid
			WHERE c.relnamespace = current_schema()::regnamespace AND c.relname LIKE 'pglimit\_%'
			UNION ALL
			SELECT format('view %s %s', c.relname, pg_get_viewdef(c.oid))
			FROM pg_class AS c WHERE c.relnamespace = current_schema()::regnamespace AND c.relname LIKE 'pglimit\_%' AND c.relkind = 'v'
			UNION ALL
			SELECT format('function %s', pg_get_functiondef(p.oid))
			FROM pg_proc AS p WHERE p.pronamespace = current_schema()::regnamespace AND p.proname LIKE 'pglimit\_%'
		) AS lines WHERE line NOT LIKE '%goose_db_version%'`)
}

// CallStatements calls the statements of db whose names have that suffix, with arguments of
// the right types. It returns their names in order, and their errors by name. A missing row is
// not an error, nor is the error by which a TakeAll denies.
func CallStatements(ctx context.Context, conn db.DBTX, suffix string) (called []string, failed map[string]error) {
	failed = map[string]error{}
	queries := reflect.ValueOf(db.New())
	for i := range queries.NumMethod() {
		name := queries.Type().Method(i).Name
		if !strings.HasSuffix(name, suffix) {
			continue
		}
		method := queries.Method(i)
		args := []reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(conn)}
		for p := 2; p < method.Type().NumIn(); p++ {
			arg := reflect.New(method.Type().In(p)).Elem()
			charge(arg)
			// The first reservation has the ID that other statements look for. A further
			// one needs another ID.
			reserves := func(name string) bool {
				return strings.HasSuffix(name, "Reserve") || strings.HasSuffix(name, "ReserveMarked") || name == "ReservationAdd"
			}
			if reserves(name) && slices.ContainsFunc(called, reserves) && arg.Kind() == reflect.Struct {
				arg.FieldByName("ID").SetString(name)
			}
			if acceptable(arg); strings.HasPrefix(name, "Override") && arg.Kind() == reflect.Struct {
				if unlimited := arg.FieldByName("Unlimited"); unlimited.IsValid() {
					unlimited.Index(0).SetBool(false)
					arg.FieldByName("Blocked").Index(0).SetBool(false)
					arg.FieldByName("Matches").Index(0).SetString("")
					arg.FieldByName("Factors").Index(0).SetFloat(0) // there is a limit
				}
			}
			args = append(args, arg)
		}
		results := method.Call(args)
		called = append(called, name)
		err, _ := results[len(results)-1].Interface().(error)
		var answer *pgconn.PgError
		denied := strings.HasSuffix(name, "TakeAll") && errors.As(err, &answer) && answer.Code == "22P02"
		if err != nil && err != pgx.ErrNoRows && !denied {
			failed[name] = err
		}
	}
	slices.Sort(called)
	return called, failed
}

// acceptable sets the fields of a policy that have constraints.
func acceptable(policy reflect.Value) {
	if policy.Kind() != reflect.Struct || !policy.FieldByName("PeriodS").IsValid() {
		return
	}
	for field, value := range map[string]any{
		"Algorithm": "token_bucket", "Calendar": "", "TimeZone": "", "Anchor": "", "Durability": "durable", "OnError": "fail_closed", "TickS": 0.0, "Aligned": false, "Ledger": false, "Lease": 0.0, "LocalShare": 0.0, "BlockGrowth": 0.0, "BlockMaxS": 0.0, "Overdraft": 0.0, "MaxKeys": int64(1), "RestLimit": 0.0, "Marks": "", "UsageBy": "", "UsageForS": 0.0,
	} {
		policy.FieldByName(field).Set(reflect.ValueOf(value))
	}
}

// charge sets every field to a value that a statement accepts; nullable fields stay NULL.
func charge(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Int64, reflect.Int32:
		v.SetInt(1_000_000)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		charge(v.Index(0))
	case reflect.Struct:
		for i := range v.NumField() {
			switch v.Type().Field(i).Name {
			case "Commit", "LockTimeout": // empty: the session's setting
			case "Anchors": // none: they are for calendars
				v.Field(i).Set(reflect.ValueOf([]string{""}))
			case "Defaults":
				v.Field(i).SetString("[]")
			default:
				charge(v.Field(i))
			}
		}
	}
}

// generated finds the statements in the files of db/.
var generated = regexp.MustCompile("const \\w+ = `(-- name: (\\w+) :[^`]*)`")

// QueryTexts reads db/ and returns the text of every statement by its name.
func QueryTexts() (map[string]string, error) {
	texts := map[string]string{}
	files, err := filepath.Glob("../testdata/repository/db/*.sql.go")
	for _, file := range files {
		data, failed := os.ReadFile(file)
		for _, found := range generated.FindAllStringSubmatch(string(data), -1) {
			texts[found[2]] = found[1]
		}
		err = errors.Join(err, failed)
	}
	return texts, err
}

var sqlComment = regexp.MustCompile(`--[^\n]*`)

// SQLStatement finds the head of each statement in a file of queries/.
var SQLStatement = regexp.MustCompile(`-- name: (\w+) :\w+\n`)

// Statements reads queries/ and returns each statement without its comments.
func Statements(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../testdata/repository/queries/*.sql")
	if err != nil || len(files) < 7 {
		t.Fatalf("queries/: %v, %v", files, err)
	}
	all := map[string]string{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		names := SQLStatement.FindAllStringSubmatchIndex(text, -1)
		for i, at := range names {
			end := len(text)
			if i+1 < len(names) {
				end = names[i+1][0]
			}
			all[text[at[2]:at[3]]] = strings.ToLower(sqlComment.ReplaceAllString(text[at[1]:end], ""))
		}
	}
	return all
}

// TableOf returns the table that has an algorithm's rows.
func TableOf[A ~string](a A) string { return "pglimit_" + string(algorithm.Name(a).Table()) }
