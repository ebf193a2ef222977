package main

import (
	"slices"
	"strings"
)

// width is the longest line of queries/*.sql, in bytes. The SQL functions indent the
// statements by eight more, so that those lines stay under 200 too.
const width = 180

// wrap breaks the lines of SQL that are longer than width, outside as many brackets and
// CASEs as possible. It indents the rest of the line by four, and by four more for each
// open bracket or CASE. It does not change comments.
func wrap(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "--") {
			b.WriteString(line + "\n")
			continue
		}
		margin := len(line) - len(strings.TrimLeft(line, " "))
		in, depth := margin, 0
		for in+len(strings.TrimLeft(line, " ")) > width {
			line = strings.TrimLeft(line, " ")
			at, level := cut(line, width-in, depth)
			if at == 0 {
				break
			}
			b.WriteString(strings.Repeat(" ", in) + strings.TrimRight(line[:at], " ") + "\n")
			line, depth, in = line[at:], level, margin+4+4*max(0, level)
		}
		b.WriteString(strings.Repeat(" ", in) + strings.TrimLeft(line, " ") + "\n")
	}
	return b.String()
}

// cut returns the index at which to break a line so that its first part has at most room
// bytes, and the number of brackets and CASEs open there. depth is the number open at
// the line's start. If no break is possible, at is 0.
func cut(line string, room, depth int) (at, level int) {
	best := 0
	for i := 0; i < min(len(line), room); i++ {
		rest := line[i:]
		switch {
		case rest[0] == '(' || rest[0] == '[':
			depth++
		case rest[0] == ')' || rest[0] == ']':
			depth--
		case word(line, i, "CASE"):
			depth++
		case word(line, i, "END"):
			depth--
		}
		loose, ok := looseness(line, i)
		if cost := 10*depth - loose; ok && i > room/3 && (at == 0 || cost <= best) {
			at, level, best = i+1, depth, cost
		}
	}
	return at, level
}

// breaks lists the words before which a line may be broken, the loosest last.
var breaks = [][]string{{"*", "/"}, {"+", "-", "||"}, {"<", "<=", "=", ">=", ">", "<>"}, {"AND", "OR"}, {"WHEN", "THEN", "ELSE", "FROM"}}

// looseness reports whether the line may be broken at the space at i, and how weak the
// bond between its two parts is: larger is weaker.
func looseness(line string, i int) (loose int, ok bool) {
	if line[i] != ' ' {
		return 0, false
	}
	if i > 0 && line[i-1] == ',' {
		return len(breaks), true
	}
	next, _, _ := strings.Cut(line[i+1:], " ")
	for loose, words := range breaks {
		if slices.Contains(words, next) {
			return loose, true
		}
	}
	return 0, false
}

// word reports whether the word w begins at i.
func word(line string, i int, w string) bool {
	if !strings.HasPrefix(line[i:], w) {
		return false
	}
	letter := func(at int) bool {
		return at >= 0 && at < len(line) && (line[at] == '_' || line[at] >= 'a' && line[at] <= 'z' || line[at] >= 'A' && line[at] <= 'Z')
	}
	return !letter(i-1) && !letter(i+len(w))
}
