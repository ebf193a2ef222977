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
	queryName = regexp.MustCompile(`(?m)^-- name: (\w+) :(\w+)$`)
	argument  = regexp.MustCompile(`sqlc\.n?arg\((\w+)\)`)
	lastName  = regexp.MustCompile(`(\w+)$`)

	// What a statement sets for its transaction: among other columns of a sub-select, or
	// around a value that it writes.
	setting = `CASE WHEN sqlc\.arg\((?:commit|lock_timeout)\)[^;]*?END AS (?:commits|waits)`
	sets    = regexp.MustCompile(`\n(?:USING|FROM) \(SELECT ` + setting + `,\s*` + setting + `\) AS c|,\s*` + setting + `|` + setting + `,\s*`)
	around  = regexp.MustCompile(`CASE WHEN CASE WHEN sqlc\.arg\(lock_timeout\)[^;]*?IS NULL END THEN NULL\s+WHEN CASE WHEN sqlc\.arg\(commit\)[^;]*?IS NULL END THEN NULL\s+ELSE ([^;]*?) END`)

	// The statement's clock. It stands still while a caller's statement calls functions,
	// so a function reads clock_timestamp and sets now_us.
	clock = regexp.MustCompile(`coalesce\(sqlc\.narg\(now_us\)::bigint,\s+\(date_part\('epoch'::text, statement_timestamp\(\)\) \* 1000000::float8\)::bigint\)`)
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

// plpgsql is a query's text over the fields of request: parameters are read from those
// of the same name, and what it returns goes into them.
func (s *statements) plpgsql(query string) (string, error) {
	text, err := s.rows(query)
	if err != nil {
		return "", err
	}
	into, err := s.into(query)
	if err != nil {
		return "", fmt.Errorf("%s: %w", query, err)
	}
	if m := upsert.FindStringSubmatch(text); m != nil && strings.Contains(m[4], "SELECT") {
		return updates(m[1], m[2], m[3], m[4], m[5], into)
	}
	return text + into + ";", nil
}

// upsert matches a statement that inserts one row: its table, columns, values, SET and RETURNING.
var upsert = regexp.MustCompile(`(?s)^INSERT INTO (\w+)\n +\(([^)]*)\)\nVALUES \((.*)\)\nON CONFLICT \(policy, key\) DO UPDATE SET\n(.*)\n(RETURNING .*)$`)

// updates is such a statement as an UPDATE, and as an INSERT while there is no row. Citus
// refuses sub-selects in the SET of a row of VALUES.
func updates(table, columns, values, set, returning, into string) (string, error) {
	names, list := items(columns), items(values)
	if len(names) != len(list) {
		return "", fmt.Errorf("%d columns of %s have %d values", len(names), table, len(list))
	}
	for i, name := range names {
		value := list[i]
		if strings.ContainsAny(value, " (-") {
			value = "(" + value + ")"
		}
		set = regexp.MustCompile(`\bEXCLUDED\.`+name+`\b`).ReplaceAllLiteralString(set, value)
	}
	alias := regexp.MustCompile(`\b` + table + `\.`)
	update := fmt.Sprintf("UPDATE %s AS t SET\n%s\nWHERE t.policy = request.policy AND t.key = request.key\n%s", table, set, returning)
	insert := fmt.Sprintf("INSERT INTO %s AS t\n       (%s)\nVALUES (%s)\nON CONFLICT (policy, key) DO NOTHING\n%s", table, columns, values, returning)
	body := alias.ReplaceAllString(update, "t.") + into + ";\nEXIT WHEN FOUND;\n" + alias.ReplaceAllString(insert, "t.") + into + ";\nEXIT WHEN FOUND;"
	return "LOOP\n" + indent(4, body) + "\nEND LOOP;", nil
}

// into is where plpgsql puts what a query returns.
func (s *statements) into(query string) (string, error) {
	answer, more := s.text[query], []string(nil)
	if name, ok := strings.CutSuffix(query, "Usage"); ok { // the columns of Get, and these
		answer, more = s.text[name+"Get"], []string{"reservations", "reserved"}
		if _, inner, ok := strings.Cut(s.text[query], "\nFROM (\n"); ok {
			answer, _, _ = strings.Cut(inner, "\n) AS s,")
		}
	}
	columns, err := returned(answer)
	columns = append(columns, more...)
	for i, c := range columns {
		if c == "period_us" && !strings.HasSuffix(query, "Settle") { // the row's, not the one asked with
			columns[i] = "window_us"
		}
	}
	if len(columns) == 0 {
		return "", err
	}
	return "\n" + broken("INTO request."+strings.Join(columns, ", request."), 150, "     "), err
}

// broken breaks a list into lines of at most width, all but the first indented by margin.
func broken(list string, width int, margin string) string {
	var b strings.Builder
	line := 0
	for i, item := range strings.Split(list, ", ") {
		switch {
		case i > 0 && line+len(item) > width:
			b.WriteString(",\n" + margin)
			line = 0
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(item)
		line += len(item) + 2
	}
	return b.String()
}

// indent puts a margin before each line.
func indent(margin int, text string) string {
	spaces := strings.Repeat(" ", margin)
	return spaces + strings.ReplaceAll(text, "\n", "\n"+spaces)
}

// rows is plpgsql without a place for what it returns. How a transaction commits and
// how long it waits for locks stays the caller's: that part is left out.
func (s *statements) rows(query string) (string, error) {
	text, ok := s.text[query]
	if !ok {
		return "", fmt.Errorf("there is no query %s", query)
	}
	text = around.ReplaceAllString(sets.ReplaceAllString(text, ""), "$1")
	if strings.Contains(text, "set_config") {
		return "", fmt.Errorf("%s has settings in a place that is not known", query)
	}
	text = clock.ReplaceAllString(text, "request.now_us")
	if strings.Contains(text, "statement_timestamp") {
		return "", fmt.Errorf("%s reads the clock in a form that is not known", query)
	}
	return argument.ReplaceAllString(text, "request.$1"), nil
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
	if end := top(list, "FROM"); end >= 0 {
		list = list[:end]
	}
	var columns []string
	for _, item := range items(list) {
		name := lastName.FindString(item)
		if name == "" || slices.Contains(columns, name) {
			return nil, fmt.Errorf("the column %q has no unique name", item)
		}
		columns = append(columns, name)
	}
	return columns, nil
}

// items are those of a list that commas outside parentheses and brackets separate.
func items(list string) (all []string) {
	depth, from := 0, 0
	for i, c := range list {
		switch c {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case ',':
			if depth == 0 {
				all = append(all, strings.TrimSpace(list[from:i]))
				from = i + 1
			}
		}
	}
	return append(all, strings.TrimSpace(list[from:]))
}

// top finds a word outside parentheses, or returns -1.
func top(text, word string) int {
	depth := 0
	for i, c := range text {
		switch c {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case ' ', '\n':
			if depth == 0 && strings.HasPrefix(text[i+1:], word+" ") {
				return i
			}
		}
	}
	return -1
}
