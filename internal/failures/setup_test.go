// Package failures holds a test for each kind of failure that happened to
// somebody else's memory, named after the report in which it can be looked up.
// They speak to whole memds, by the API where it reaches. Each file is a group
// and begins with the list of its reports; kinds that are one package's own are
// tested there, and the list says by which test.
package failures_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const app = "chat"

// installation is a memd with two replicas.
type installation struct {
	*memdtest.Stack
	t    *testing.T
	a, b *node.Server
	urls []string
	http *http.Client
	db   *pg.Pool // a superuser, for counting in the tables and for breaking things
}

func setup(t *testing.T, options ...memdtest.Option) *installation {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	in := &installation{Stack: memdtest.Start(t, options...), t: t, urls: make([]string, 2), http: &http.Client{Transport: transport}}
	in.a, in.urls[0] = in.Server()
	in.b, in.urls[1] = in.Server()
	t.Cleanup(transport.CloseIdleConnections) // Else each server waits for them.
	in.db = in.DB.Pool("")
	return in
}

// customer is a tenant with clients of both replicas.
type customer struct {
	in     *installation
	t      *testing.T
	tenant memory.Tenant
	memory []memdv1connect.MemoryServiceClient
	eraser []memdv1connect.ErasureServiceClient
}

func (in *installation) customer(name string) *customer {
	in.t.Helper()
	c := &customer{in: in, t: in.t, tenant: in.Tenant(name, memdtest.Policy())}
	secret := in.Key(c.tenant.No, auth.Agent|auth.Eraser)
	for _, url := range in.urls {
		c.memory = append(c.memory, memdv1connect.NewMemoryServiceClient(in.client(url, secret)))
		c.eraser = append(c.eraser, memdv1connect.NewErasureServiceClient(in.client(url, secret)))
	}
	return c
}

func (in *installation) client(url, secret string) *connect.Client {
	key := func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			if info, ok := connect.CallInfoForClientContext(ctx); ok {
				info.RequestHeader().Set("Authorization", "Bearer "+secret)
			}
			return next(ctx, spec)
		}
	}
	return connect.NewClient(connecthttp.NewTransport(in.http, url), key)
}

func user(id string) *memdv1.Scope {
	return &memdv1.Scope{Owner: &memdv1.Scope_User{User: &memdv1.UserScope{App: app, UserId: id}}}
}

func shared() *memdv1.Scope {
	return &memdv1.Scope{Owner: &memdv1.Scope_Shared{Shared: &memdv1.SharedScope{App: app}}}
}

// vector is everybody's, so that a search for it finds all there is.
func vector() []float32 { return []float32{1, 0, 0, 0} }

func said(id, session, text string) *memdv1.Row {
	return &memdv1.Row{Scope: user(id), SessionId: session, Kind: memdv1.Kind_KIND_RAW, Text: text, Vector: vector()}
}

func contributed(id, session, text string) *memdv1.Row {
	return &memdv1.Row{
		Scope: shared(), Contributor: &memdv1.Session{UserId: id, SessionId: session}, Kind: memdv1.Kind_KIND_RAW, Text: text, Vector: vector(),
	}
}

func drawn(scope *memdv1.Scope, text string, from ...string) *memdv1.Row {
	row := &memdv1.Row{Scope: scope, Kind: memdv1.Kind_KIND_SUMMARY, Text: text, Vector: vector()}
	for _, id := range from {
		row.Sources = append(row.Sources, &memdv1.Source{Source: &memdv1.Source_MemoryId{MemoryId: id}})
	}
	return row
}

func at(row *memdv1.Row, t time.Time) *memdv1.Row {
	row.SourceTime = timestamppb.New(t)
	return row
}

// add adds rows, in batches of what one call may have, and returns their ids.
func (c *customer) add(rows ...*memdv1.Row) []string {
	c.t.Helper()
	var ids []string
	for batch := range slices.Chunk(rows, 256) {
		res, err := c.memory[0].Add(c.t.Context(), &memdv1.AddRequest{Rows: batch})
		if err != nil {
			c.t.Fatalf("adding: %v", err)
		}
		for _, r := range res.GetResults() {
			ids = append(ids, r.GetMemoryId())
		}
	}
	return ids
}

// refused adds a row, which both replicas refuse for that reason.
func (c *customer) refused(row *memdv1.Row, reasons ...string) {
	c.t.Helper()
	for _, m := range c.memory {
		_, err := m.Add(c.t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
		if got := reason(err); !slices.Contains(reasons, got) {
			c.t.Errorf("adding %q: %q (%v), want %q", row.GetText(), got, err, reasons)
		}
	}
}

// reason is the machine-readable reason of an answer, or "".
func reason(err error) string {
	var e *connect.Error
	if !errors.As(err, &e) {
		return ""
	}
	for _, d := range e.Details() {
		if value, err := connectproto.UnmarshalErrorDetail(d); err == nil {
			if info, ok := value.(*errdetails.ErrorInfo); ok {
				return info.GetReason()
			}
		}
	}
	return ""
}

// texts are what both replicas list and find in a scope, sorted.
func (c *customer) texts(scope *memdv1.Scope) []string {
	c.t.Helper()
	var all [][]string
	for _, m := range c.memory {
		var listed, found []string
		for token := ""; ; {
			page, err := m.List(c.t.Context(), &memdv1.ListRequest{Scope: scope, PageSize: 1000, PageToken: token})
			if err != nil {
				c.t.Fatalf("listing: %v", err)
			}
			for _, r := range page.GetMemories() {
				listed = append(listed, r.GetText())
			}
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
		res, err := m.Search(c.t.Context(), &memdv1.SearchRequest{Scope: scope, Vector: vector(), TopK: 1000})
		if err != nil {
			c.t.Fatalf("searching: %v", err)
		}
		for _, h := range res.GetHits() {
			found = append(found, h.GetMemory().GetText())
		}
		slices.Sort(listed)
		slices.Sort(found)
		if len(listed) <= 1000 {
			all = append(all, found)
		}
		all = append(all, listed)
	}
	for _, other := range all[1:] {
		if diff := cmp.Diff(all[0], other); diff != "" {
			c.t.Errorf("lists, searches or replicas differ:\n%s", diff)
		}
	}
	return all[0]
}

func (c *customer) wants(scope *memdv1.Scope, want ...string) {
	c.t.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, c.texts(scope)); diff != "" {
		c.t.Errorf("%v (-want +got):\n%s", scope, diff)
	}
}

// forgetUser forgets a user by one of the replicas, until that is done.
func (c *customer) forgetUser(replica int, id string) *memdv1.Report {
	c.t.Helper()
	res, err := c.eraser[replica].ForgetUser(c.t.Context(), &memdv1.ForgetUserRequest{App: app, UserId: id, RequestId: uuid.NewString()})
	if err != nil || res.GetReport().GetState() != memdv1.ErasureState_ERASURE_STATE_DONE {
		c.t.Fatalf("forgetting: %v, %v; log:\n%s", res, err, c.in.Logs)
	}
	return res.GetReport()
}

func (c *customer) forgetSession(replica int, id, session string) *memdv1.Report {
	c.t.Helper()
	res, err := c.eraser[replica].ForgetSession(c.t.Context(), &memdv1.ForgetSessionRequest{
		App: app, UserId: id, SessionId: session, RequestId: uuid.NewString(),
	})
	if err != nil || res.GetReport().GetState() != memdv1.ErasureState_ERASURE_STATE_DONE {
		c.t.Fatalf("forgetting: %v, %v; log:\n%s", res, err, c.in.Logs)
	}
	return res.GetReport()
}

// store is what a report says of a store: before and after.
func store(r *memdv1.Report, name string) (before, after int64) {
	for _, s := range r.GetCounts() {
		if s.GetStore() == name && s.After != nil {
			return s.GetBefore(), s.GetAfter()
		}
	}
	return -1, -1
}

// count counts in the tables themselves.
func (in *installation) count(sql string, args ...any) int {
	in.t.Helper()
	var n int
	err := in.db.With(in.t.Context(), func(db pg.DB) error { return db.QueryRow(in.t.Context(), sql, args...).Scan(&n) })
	if err != nil {
		in.t.Fatal(err)
	}
	return n
}

func (in *installation) exec(sql string, args ...any) {
	in.t.Helper()
	err := in.db.With(in.t.Context(), func(db pg.DB) error {
		_, err := db.Exec(in.t.Context(), sql, args...)
		return err
	})
	if err != nil {
		in.t.Fatal(err)
	}
}

// texts reads one column.
func (in *installation) texts(sql string, args ...any) []string {
	in.t.Helper()
	var out []string
	err := in.db.With(in.t.Context(), func(db pg.DB) error {
		rows, err := db.Query(in.t.Context(), sql, args...)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		in.t.Fatal(err)
	}
	return out
}

func (in *installation) text(sql string, args ...any) string {
	in.t.Helper()
	all := in.texts(sql, args...)
	if len(all) != 1 {
		in.t.Fatalf("%d rows, not one", len(all))
	}
	return all[0]
}

// memoryAt is a client of a tenant's at another replica.
func (in *installation) memoryAt(c *customer, url string) memdv1connect.MemoryServiceClient {
	return memdv1connect.NewMemoryServiceClient(in.client(url, in.Key(c.tenant.No, auth.Agent)))
}
