// Package migrations holds the schema of memd's database as goose migrations,
// in the order of their numbers. internal/pg runs them.
package migrations

import "embed"

// FS holds the SQL files.
//
//go:embed *.sql
var FS embed.FS
