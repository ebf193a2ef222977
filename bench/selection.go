package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/report"
)

// The parts of a run besides the ways to choose keys.
const (
	logs   = "log"
	denial = "denial"
)

// parts are what -only takes.
var parts = []string{string(report.Hot), string(report.Even), string(report.Zipf), string(report.Amounts), logs, denial}

// selection is the cells to measure, so that one of them can be repeated. The zero value
// selects all.
type selection struct {
	parts      []string
	contenders *regexp.Regexp
	callers    []int
}

func (s *selection) setParts(list string) error {
	for part := range strings.SplitSeq(list, ",") {
		if !slices.Contains(parts, part) {
			return fmt.Errorf("%q is none of %s", part, strings.Join(parts, ", "))
		}
		s.parts = append(s.parts, part)
	}
	return nil
}

func (s *selection) setContenders(pattern string) (err error) {
	s.contenders, err = regexp.Compile(pattern)
	return err
}

func (s *selection) setCallers(list string) error {
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || !slices.Contains(allCallers, n) {
			return fmt.Errorf("%q is none of %v", text, allCallers)
		}
		s.callers = append(s.callers, n)
	}
	return nil
}

// partial reports whether cells are left out.
func (s *selection) partial() bool {
	return s.parts != nil || s.contenders != nil || s.callers != nil
}

// wants reports whether a part is selected. The cached denial has one caller and is no
// contender's, so it is left out where those are selected.
func (s *selection) wants(part string) bool {
	if part == denial && s.parts == nil {
		return !s.partial()
	}
	return s.parts == nil || slices.Contains(s.parts, part)
}

func (s *selection) wantsCallers(n int) bool {
	return s.callers == nil || slices.Contains(s.callers, n)
}

// choose returns the selected ones of a part's contenders.
func (s *selection) choose(all []contender.Contender, ofParts ...string) []contender.Contender {
	if !slices.ContainsFunc(ofParts, s.wants) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(all), func(c contender.Contender) bool {
		return s.contenders != nil && !s.contenders.MatchString(c.ID)
	})
}
