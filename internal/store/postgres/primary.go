package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// validate refuses servers that take no writes. The driver then tries the next
// host of the URL.
func validate(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, "select pg_is_in_recovery(), "+
		"current_setting('transaction_read_only'), current_setting('server_version_num')").ReadAll()
	if err != nil {
		return err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 3 {
		return &engine.ServerError{Problem: "does not answer as PostgreSQL does", Do: "name another server"}
	}
	row := results[0].Rows[0]
	version, err := strconv.Atoi(string(row[2]))
	switch {
	case err != nil || version < minVersion:
		return &engine.ServerError{Problem: fmt.Sprintf("is PostgreSQL %d", version/10000), Do: "use release 13 or later"}
	case string(row[0]) != "f":
		return &engine.ServerError{Problem: isReplica, Do: "name the primary, or all hosts separated by commas"}
	case string(row[1]) != "off":
		return readOnlyServer()
	}
	return nil
}

// validateReading is validate for connections that only read, where the URL names one
// server: it is the primary, whether it takes writes now or not. Of several, one that
// is read-only may be a primary of before that is kept from writing.
func validateReading(ctx context.Context, conn *pgconn.PgConn) error {
	if err := validate(ctx, conn); !errors.Is(err, store.ErrFull) {
		return err
	}
	return nil
}
