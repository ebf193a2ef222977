// Package zone loads time zones by their names in the IANA time zone database, each by
// one spelling only.
package zone

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// pattern matches every name of the database but Local. Files that systems keep next to
// the zones, such as localtime, posixrules and right/Europe/Vienna, begin in lower case.
var pattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Z][A-Za-z0-9_+-]*(/[A-Z][A-Za-z0-9_+-]*){0,2}$`)
})

// maxName is the longest name in bytes. The longest of the database has 32.
const maxName = 64

// Load returns the zone of a name. The empty name is UTC. The error says why the name is
// refused and what to use instead.
//
// A file system may find one zone under many spellings, and each would be another zone to
// the caller. So Load refuses the spellings that names does not have. Names that are not
// in the list, such as those published after it was made, are accepted if they match the
// pattern and this system knows them.
func Load(name string) (*time.Location, error) {
	switch {
	case name == "":
		return time.UTC, nil
	case name == "Local":
		return nil, errors.New("differs from machine to machine: name the zone, such as Europe/Vienna")
	case name == "Factory":
		return nil, errors.New("stands for a zone that is not set: name the zone, such as Europe/Vienna")
	case len(name) > maxName || !pattern().MatchString(name) && listed(name) == "":
		return nil, errors.New("is not a name of the IANA time zone database: use one, such as Europe/Vienna")
	}
	if known := listed(name); known != "" && known != name {
		return nil, fmt.Errorf("is spelled %s: use that", known)
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil, errors.New(`is not known here: use a name of the IANA time zone database, such as Europe/Vienna; if this system has none, import _ "time/tzdata"`)
	}
	return location, nil
}

// Names returns the names of the IANA time zone database, as of the Go toolchain that made
// this package.
func Names() []string { return slices.Clone(names[:]) }

// listed returns the spelling of a name in names, or "" if it is in none.
func listed(name string) string {
	i, found := slices.BinarySearchFunc(names[:], name, compareFolded)
	if !found {
		return ""
	}
	return names[i]
}

// compareFolded compares names without regard to case: the order of names.
func compareFolded(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) }
