package pg

// For tests over migrations of their own.
var (
	MigrateFS     = migrateFS
	CheckSchemaFS = checkSchema
)
