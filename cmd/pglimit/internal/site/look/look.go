// Package look has the style sheet and the icon that the web pages share.
package look

import "embed"

// Files has base.css and icon.svg.
//
//go:embed *.css *.svg
var Files embed.FS
