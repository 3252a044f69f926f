package pg

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Args are the arguments of a statement by name, "@name" in the SQL. Every
// name must have an argument and every argument a name, as with
// pgx.StrictNamedArgs, which reads the SQL anew for each call; Args reads each
// statement once. The statements are constants, so that is a bounded number.
type Args map[string]any

// compiled is a statement with numbered parameters, and the name of each.
type compiled struct {
	sql   string
	names []string
}

var statements sync.Map // string to *compiled

// RewriteQuery implements pgx.QueryRewriter.
func (a Args) RewriteQuery(ctx context.Context, conn *pgx.Conn, sql string, _ []any) (string, []any, error) {
	c, err := compile(ctx, conn, sql, a)
	if err != nil {
		return "", nil, err
	}
	args := make([]any, len(c.names))
	for i, name := range c.names {
		v, ok := a[name]
		if !ok {
			return "", nil, fmt.Errorf("argument %s of a statement is missing", name)
		}
		args[i] = v
	}
	if len(a) != len(c.names) {
		return "", nil, fmt.Errorf("statement has %d arguments and was given %d", len(c.names), len(a))
	}
	return c.sql, args, nil
}

// compile has pgx number the parameters, with their names as arguments.
func compile(ctx context.Context, conn *pgx.Conn, sql string, a Args) (*compiled, error) {
	if c, ok := statements.Load(sql); ok {
		return c.(*compiled), nil
	}
	names := make(pgx.StrictNamedArgs, len(a))
	for name := range a {
		names[name] = name
	}
	numbered, args, err := names.RewriteQuery(ctx, conn, sql, nil)
	if err != nil {
		return nil, err
	}
	c := &compiled{sql: numbered, names: make([]string, len(args))}
	for i := range args {
		c.names[i] = args[i].(string)
	}
	statements.Store(sql, c)
	return c, nil
}
