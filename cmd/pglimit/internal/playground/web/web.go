// Package web has the files of the playground's page.
package web

import "embed"

// Files has index.html and what it loads, except for the files of package look.
//
//go:embed *.html *.css *.js
var Files embed.FS
