// Package sets has pglimit's two sequences of migrations with all that can be done with them,
// for the command, the doctor and tests. Applications have package migrations.
package sets

import (
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/migrations"
)

var (
	// Tables are the tables and views that every limiter needs.
	Tables = migrate.Tables(migrations.FS())
	// Functions are the SQL functions.
	Functions = migrate.Functions(migrations.Functions.FS())
)
