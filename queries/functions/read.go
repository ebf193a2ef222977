package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// statements are the queries of queries/*.sql, without their comments.
type statements struct{ text map[string]string }

var (
	queryName  = regexp.MustCompile(`(?m)^-- name: (\w+) :(\w+)$`)
	argument   = regexp.MustCompile(`sqlc\.n?arg\((\w+)\)`)
	lastName   = regexp.MustCompile(`(\w+)$`)
	mentioned  = regexp.MustCompile(`\bask\.(\w+)`)
	parameters = regexp.MustCompile(`\$(\w+)`)
)

func readStatements(dir string) (*statements, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.sql"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no queries in %s: run it from the module's root (%v)", dir, err)
	}
	s := &statements{map[string]string{}}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		names := queryName.FindAllStringSubmatchIndex(string(data), -1)
		for _, at := range names {
			var lines []string
			for line := range strings.Lines(string(data[at[1]:])) {
				text, ends := strings.CutSuffix(strings.TrimRight(line, "\n"), ";")
				if !strings.HasPrefix(text, "--") && text != "" {
					lines = append(lines, text)
				}
				if ends && !strings.HasPrefix(text, "--") {
					break
				}
			}
			s.text[string(data[at[2]:at[3]])] = strings.Join(lines, "\n")
		}
	}
	return s, nil
}

// plpgsql is a query's text over the variables of the block "ask": parameters
// are read from those of the same name, and what it returns goes into them. How
// a transaction commits and how long it waits for locks stays the caller's.
func (s *statements) plpgsql(query string) (string, error) {
	text, err := s.rows(query)
	if err != nil {
		return "", err
	}
	columns, err := returned(s.text[query])
	if err != nil {
		return "", fmt.Errorf("%s: %w", query, err)
	}
	for i, c := range columns {
		if c == "period_us" && !strings.HasSuffix(query, "Settle") { // the row's, not the one asked with
			columns[i] = "window_us"
		}
	}
	if len(columns) > 0 {
		text += "\nINTO ask." + strings.Join(columns, ", ask.")
	}
	return text + ";", nil
}

// rows is plpgsql without a place for what it returns.
func (s *statements) rows(query string) (string, error) {
	text, ok := s.text[query]
	if !ok {
		return "", fmt.Errorf("there is no query %s", query)
	}
	return argument.ReplaceAllStringFunc(text, func(arg string) string {
		name := argument.FindStringSubmatch(arg)[1]
		if name == "commit" || name == "lock_timeout" {
			return "''"
		}
		return "ask." + name
	}), nil
}

// returned names the columns that a statement returns, none for a command.
func returned(text string) ([]string, error) {
	if at := strings.LastIndex(text, "\n)\n"); strings.HasPrefix(text, "WITH ") && at >= 0 {
		text = text[at+len("\n)\n"):] // the statement after its queries
	}
	list := text
	if at := strings.LastIndex(text, "RETURNING "); at >= 0 {
		list = text[at+len("RETURNING "):]
	} else if after, ok := strings.CutPrefix(list, "SELECT "); ok {
		list = after
	} else {
		return nil, nil
	}
	var columns []string
	depth, from := 0, 0
	for i := 0; i <= len(list); i++ {
		end := i == len(list) || depth == 0 && (strings.HasPrefix(list[i:], "\nFROM ") || strings.HasPrefix(list[i:], " FROM "))
		if end || depth == 0 && list[i] == ',' {
			name := lastName.FindString(strings.TrimSpace(list[from:i]))
			if name == "" || slices.Contains(columns, name) {
				return nil, fmt.Errorf("the column %q has no name of its own", strings.TrimSpace(list[from:i]))
			}
			columns = append(columns, name)
			from = i + 1
		}
		if end {
			break
		}
		switch list[i] {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		}
	}
	return columns, nil
}

// variables are what the templates and the statements may use, by the names
// that the statements have for them, and how they begin: $name is a parameter
// of the function, or NULL where it has none of that name.
var variables = []struct{ name, declaration string }{
	// What is asked, and the policy's numbers.
	{"policy", "text := $name"},
	{"key", "text := $key"},
	{"units", "float8 := coalesce($cost, $units)"},
	{"cost", "float8 := $cost"},
	{"count", "float8 := 1"},
	{"unit", "float8 := $cost"},
	{"limit_units", "float8 := $limit_units"},
	{"burst", "float8 := coalesce($burst, $limit_units)"},
	{"capacity", "float8"},
	{"room", "float8"},
	{"tick_us", "bigint := 1"},
	{"leak", "float8"},
	{"period_us", "bigint"},
	{"aligned", "bool := coalesce($aligned, false)"},
	{"from_us", "bigint := 0"}, // of a calendar: none
	{"turn_us", "bigint := 0"},
	{"until_us", "bigint := 0"},
	{"block_for_us", "bigint"},
	{"for_us", "bigint"},
	{"hold_us", "bigint"},
	{"now_us", "bigint := $at_us"},
	{"algorithm", "text := $algorithm"},
	{"id", "text := $hold"},
	{"state", "text := $to_state"},
	{"idempotency_key", "text"}, // none: an INSERT of the caller's in the same transaction is as good
	{"ttl_us", "bigint"},
	{"remember_us", "bigint := 86400000000"}, // limiter.DefaultIdempotencyTTL
	{"max_rows", "bigint := 100"},
	// What a statement returns.
	{"granted", "float8 := 0"},
	{"level", "float8"},
	{"leaked_at_us", "bigint"},
	{"ticket", "bigint"},
	{"ends_at_us", "bigint"},
	{"current", "float8"},
	{"previous", "float8"},
	{"newest_at_us", "bigint"},
	{"frees_at_us", "bigint"},
	{"updated_at_us", "bigint"},
	{"blocked_until_us", "bigint"},
	{"window_us", "bigint"},
	{"reserved", "float8"},
	{"units_before", "float8"},
	{"changes", "bool"},
	{"expires_at_us", "bigint"},
	{"freed", "bool"},
	{"at_us", "bigint"},
	// What that means.
	{"settled", "pglimit._settled"},
	{"ids", "text[]"},
	{"again", "bool := false"},
	{"steps", "bigint"},
	{"rest", "float8"},
	{"fits_at_us", "bigint"},
	{"empty_at_us", "bigint"},
	{"ahead_us", "float8"},
	{"answer", ""}, // what the function returns
}

// declare puts the declarations of the variables that it mentions before a
// function's body.
func (f function) declare(body string) (string, error) {
	var used []string
	for _, m := range mentioned.FindAllStringSubmatch(body, -1) {
		used = append(used, m[1])
	}
	var b strings.Builder
	b.WriteString("<<ask>>\nDECLARE\n")
	for _, v := range variables {
		if !slices.Contains(used, v.name) {
			continue
		}
		used = slices.DeleteFunc(used, func(name string) bool { return name == v.name })
		if v.declaration == "" {
			v.declaration = f.Returns()
		}
		declaration := parameters.ReplaceAllStringFunc(v.declaration, func(p string) string {
			if at := f.position(p[1:]); at > 0 {
				return fmt.Sprintf("$%d", at)
			}
			return "NULL"
		})
		fmt.Fprintf(&b, "    %s %s;\n", v.name, declaration)
	}
	if len(used) > 0 {
		return "", fmt.Errorf("there is no variable for %s: add it to variables, and set it in a template", used[0])
	}
	return b.String() + "BEGIN\n" + body + "END", nil
}
