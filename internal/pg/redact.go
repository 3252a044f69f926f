package pg

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// Redact renders a connection string for people: user, host, port and database
// only. A string that cannot be parsed is not repeated at all.
func Redact(url string) string {
	c, err := pgconn.ParseConfig(url)
	if err != nil {
		return "(not a connection string)"
	}
	return fmt.Sprintf("%s@%s:%d/%s", c.User, c.Host, c.Port, c.Database)
}
