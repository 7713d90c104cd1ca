package postgres

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// readOnlyServer is the error of a server that answers reads alone. Hosted ones become
// so when their disk fills up.
func readOnlyServer() error {
	return &store.RefusedError{Reason: store.ReadOnly, Err: &engine.ServerError{Problem: isReadOnly,
		Do: "make space on its disk if that is full; " +
			"otherwise find out who set it and why, or name another server"}}
}

// isReadOnly is the problem of such a server.
const isReadOnly = "is read-only (transaction_read_only is on)"

// isReplica is the problem of a server that follows another one.
const isReplica = "is a replica, which takes no writes"

// minVersion is the oldest server that is known to work, as server_version_num.
const minVersion = 130000

// parse returns how to connect to what raw names, and a name of it without user
// and password. Its errors show neither raw nor a part of it that could be the
// password.
func parse(raw string) (*pgx.ConnConfig, string, error) {
	if err := CheckURL(raw); err != nil {
		return nil, "", err
	}
	config, err := pgx.ParseConfig(raw)
	if err != nil {
		return nil, "", &AddressError{"is not valid" + reason(raw, err)}
	}
	hosts := []string{hostPort(config.Host, config.Port)}
	for _, f := range config.Fallbacks {
		// The driver lists a host once for each way to try TLS.
		if h := hostPort(f.Host, f.Port); h != hosts[len(hosts)-1] {
			hosts = append(hosts, h)
		}
	}
	name := "postgres://" + strings.Join(hosts, ",") + "/" + config.Database
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "fealty"
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 5 * time.Second // for each host
	}
	config.ValidateConnect = validate
	return config, name, nil
}

func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// reason returns why the driver refused raw, unless that could tell a secret.
func reason(raw string, err error) string {
	inner := errors.Unwrap(err) // without the URL, which the outer one quotes
	if inner == nil {
		return ""
	}
	u, parseErr := url.Parse(raw)
	if parseErr != nil {
		return "" // quotes the URL, and nobody can tell what the password is
	}
	password, _ := u.User.Password()
	secrets := []string{raw, password, u.User.String(), u.RawQuery}
	for name, values := range u.Query() {
		if strings.Contains(strings.ToLower(name), "pass") {
			secrets = append(secrets, values...)
		}
	}
	for _, s := range secrets {
		if s != "" && strings.Contains(inner.Error(), s) {
			return ""
		}
	}
	return ": " + inner.Error()
}

// role is what a connection is for.
type role int

const (
	bare role = iota // setting up
	writing
	listening
	reading
)

// dialing marks the context of a connection that we asked for.
type dialing struct{}

// connect opens a connection. It never sends a cancel request: one that hits a
// commit waiting for its synchronous standby would make it visible, and look
// durable, before it is. The server's warnings go to notice, if it is not nil.
// A caller that is done with the connection calls drop.
func (db *database) connect(ctx context.Context, r role, notice func(*pgconn.Notice)) (*pgx.Conn, error) {
	once := ctx
	for tries := 1; ; tries++ {
		conn, err := db.connectOnce(once, r, notice)
		if err == nil {
			return conn, nil
		}
		other := db.login.instead(err)
		if other == nil || tries == trying || ctx.Err() != nil {
			return nil, db.plain(err)
		}
		once = other.with(ctx)
	}
}

func (db *database) connectOnce(ctx context.Context, r role, notice func(*pgconn.Notice)) (*pgx.Conn, error) {
	config := db.login.config(ctx)
	if notice != nil {
		config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notice(n) }
	}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if ctx.Value(dialing{}) == nil {
			return nil, errors.New("cancel requests are not sent")
		}
		conn, err := dial(ctx, network, addr)
		if err == nil {
			keepAlive(conn)
		}
		return conn, err
	}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, dialing{}, true), 2*db.opts.Timeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	db.login.letIn(&config.Config)
	if err := db.settle(ctx, conn, r); err != nil {
		drop(conn)
		return nil, err
	}
	return conn, nil
}

func (db *database) connectReaders(ctx context.Context) (*pgxpool.Pool, error) {
	// The driver has no other way to make this than from a string; nothing of it is
	// used but the defaults.
	config, err := pgxpool.ParseConfig("postgres://nobody@localhost:1/none?sslmode=disable")
	if err != nil {
		return nil, errors.New("the environment sets something for PostgreSQL that its driver does not understand: " +
			"look for variables that begin with PG")
	}
	config.ConnConfig = db.login.config(ctx)
	config.BeforeConnect = func(ctx context.Context, made *pgx.ConnConfig) error {
		*made = *db.login.config(ctx)
		if oneServer(made) {
			made.ValidateConnect = validateReading
		}
		dial := made.DialFunc
		made.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err == nil {
				keepAlive(conn)
			}
			return conn, err
		}
		return nil
	}
	config.MaxConns = int32(db.opts.Readers)
	config.MinConns = 0
	config.PingTimeout = db.opts.Timeout
	config.BeforeClose = func(conn *pgx.Conn) {
		c := conn.PgConn().Conn()
		if conn.IsClosed() {
			c.Close() // it broke; the driver would wait for the last words of a server that may be silent
			return
		}
		// For a farewell.
		_ = c.SetDeadline(time.Now().Add(time.Second))
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		db.login.letIn(&conn.Config().Config)
		return db.settle(ctx, conn, reading)
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// oneServer reports whether config names one server.
func oneServer(config *pgx.ConnConfig) bool {
	return !slices.ContainsFunc(config.Fallbacks, func(f *pgconn.FallbackConfig) bool {
		return f.Host != config.Host || f.Port != config.Port // the driver lists a host once for each way to try TLS
	})
}

// keepAlive makes the kernel notice a dead peer in seconds, not hours.
func keepAlive(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		// Without it the timeouts notice, later.
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{
			Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3})
	}
}

// settle gives a new connection the settings that the promises rest on, whatever
// those of server, database and role are.
func (db *database) settle(ctx context.Context, conn *pgx.Conn, r role) error {
	ms := func(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) + "ms" }
	settings := []struct{ name, value string }{
		{"default_transaction_isolation", "read committed"},
		{"lock_timeout", ms(db.opts.Timeout / 2)},
		// A warning tells what a synchronous standby did not confirm.
		{"client_min_messages", "warning"},
		// Rows are found by key. A plan that was made while a table was small must not
		// outlive that, and compiling such short queries costs more than it saves.
		{"enable_seqscan", "off"},
		{"jit", "off"},
		// A client that died or was suspended in the middle holds up all others. They wait for
		// twice as long: see lock_timeout.
		{"idle_in_transaction_session_timeout", ms(db.opts.Timeout / 4)},
		{"tcp_keepalives_idle", "3"},
		{"tcp_keepalives_interval", "1"},
		{"tcp_keepalives_count", "3"},
	}
	if r == reading {
		longest := ms(listPatience * db.opts.Timeout)
		settings = append(settings, struct{ name, value string }{"statement_timeout", longest})
	} else {
		// It would end the wait for a synchronous standby as if that had confirmed.
		settings = append(settings, struct{ name, value string }{"statement_timeout", "0"})
	}
	if db.schema != "" {
		settings = append(settings, struct{ name, value string }{"search_path", pgx.Identifier{db.schema}.Sanitize()})
	}
	var query strings.Builder
	var args []any
	query.WriteString("select set_config('synchronous_commit', " +
		"case current_setting('synchronous_commit') when 'off' then 'on' when 'local' then 'on' " +
		"else current_setting('synchronous_commit') end, false)")
	for _, set := range settings {
		fmt.Fprintf(&query, ", set_config($%d, $%d, false)", len(args)+1, len(args)+2)
		args = append(args, set.name, set.value)
	}
	if _, err := conn.Exec(ctx, query.String(), append([]any{pgx.QueryExecModeExec}, args...)...); err != nil {
		return err
	}
	if r == writing {
		return prepare(ctx, conn)
	}
	return nil
}

// drop ends a connection that is in whatever state. It does not wait for the
// network.
func drop(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	pg := conn.PgConn()
	pg.Conn().Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn.Close(ctx) // the socket is closed, so there is nothing left to fail
	<-pg.CleanupDone()
}

// connectError is why there is no connection. It takes the place of the driver's
// error, which carries the whole configuration, password included.
type connectError struct {
	text string
	err  error // what the driver's error wraps
}

func (e *connectError) Error() string { return e.text }
func (e *connectError) Unwrap() error { return e.err }

// plain returns err without the driver's connection error. If there was no connection and the
// files to log in with cannot be used as they are, it says that too.
func (db *database) plain(err error) error {
	_, unconnected := errors.AsType[*pgconn.ConnectError](err)
	err = plain(err)
	if problem := db.login.problem(); unconnected && problem != nil {
		return fmt.Errorf("%w; it was tried as before, since what the URL names cannot be used now: %w", err, problem)
	}
	return err
}

// plain returns err without the driver's connection error.
func plain(err error) error {
	if errors.Is(err, store.ErrFull) {
		return readOnlyServer() // of several, the one that says most
	}
	if e, ok := errors.AsType[*engine.ServerError](err); ok {
		return e
	}
	connect, ok := errors.AsType[*pgconn.ConnectError](err)
	if !ok {
		return err
	}
	inner := connect.Unwrap()
	return &connectError{strings.Join(strings.Fields(inner.Error()), " "), inner}
}

// inspect returns what the server's settings put at risk.
func inspect(ctx context.Context, conn *pgx.Conn) (found []engine.Problem) {
	var fsync, pages, standbys string
	var synchronous string
	var replicas int
	err := conn.QueryRow(ctx, `select current_setting('fsync'), current_setting('full_page_writes'),
		current_setting('synchronous_standby_names'), current_setting('synchronous_commit'),
		(select count(*) from pg_stat_replication)`).Scan(&fsync, &pages, &standbys, &synchronous, &replicas)
	if err != nil {
		return []engine.Problem{{What: "the server's settings could not be read: " +
			"whether it keeps what it confirms is not known",
			Do: "let this user read them"}}
	}
	if fsync != "on" {
		found = append(found, engine.Problem{Loses: true, What: "fsync is off on the PostgreSQL server: " +
			"a crash of its machine loses acknowledged commits or the whole database",
			Do: "set fsync = on there, and reload"})
	}
	if pages != "on" {
		found = append(found, engine.Problem{Loses: true, What: "full_page_writes is off on the PostgreSQL server: " +
			"a crash of its machine can damage the database",
			Do: "set full_page_writes = on there, and reload"})
	}
	switch {
	case synchronous == "off" || synchronous == "local": // settle raises it
		found = append(found, engine.Problem{Loses: true, What: "synchronous_commit is " + synchronous +
			" although Fealty raised it: a crash loses acknowledged commits",
			Do: "set synchronous_commit = on on the PostgreSQL server"})
	case replicas > 0 && standbys == "":
		found = append(found, engine.Problem{What: "replication is asynchronous: " +
			"a failover loses the last acknowledged commits",
			Do: "set synchronous_standby_names on the PostgreSQL server"})
	case standbys != "" && synchronous == "remote_write":
		found = append(found, engine.Problem{What: "synchronous_commit is remote_write: " +
			"a crash of primary and standby together loses acknowledged commits",
			Do: "set it to on"})
	}
	if !remoteIsSafe(conn) {
		found = append(found, engine.Problem{What: "the connection to the PostgreSQL server is not fully verified by TLS: " +
			"whoever gets in between reads and alters it",
			Do: "add sslmode=verify-full and sslrootcert to the URL"})
	}
	return found
}

// remoteIsSafe reports whether the peer is this machine, or verified.
func remoteIsSafe(conn *pgx.Conn) bool {
	c := conn.PgConn().Conn()
	if t, ok := c.(*tls.Conn); ok && len(t.ConnectionState().VerifiedChains) > 0 {
		return true
	}
	addr := c.RemoteAddr()
	if addr.Network() == "unix" {
		return true
	}
	at, err := netip.ParseAddrPort(addr.String())
	return err == nil && at.Addr().IsLoopback()
}

// channelOf returns the channel of a schema: channels belong to the whole
// database, and their names have at most 63 bytes.
func channelOf(schema string) string {
	sum := sha256.Sum256([]byte(schema))
	return "fealty_" + hex.EncodeToString(sum[:8])
}
