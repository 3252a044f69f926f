package cleartext_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/kmsemu"
)

// throughEveryFailure is refused in every way there is.
func (w *world) throughEveryFailure(user, session string) {
	ctx := w.t.Context()
	row := func() *memdv1.Row {
		return &memdv1.Row{Scope: userScope(user), SessionId: session, Kind: memdv1.Kind_KIND_RAW, Text: w.word("text"), Vector: w.direction()}
	}
	for what, spoil := range map[string]func(r *memdv1.Row){
		"a long user id":    func(r *memdv1.Row) { r.Scope = userScope(strings.Repeat(w.word("user"), 30)) },
		"a long session id": func(r *memdv1.Row) { r.SessionId = strings.Repeat(w.word("session"), 30) },
		"a long event id":   func(r *memdv1.Row) { r.EventId = strings.Repeat(w.word("event"), 30) },
		"a long text":       func(r *memdv1.Row) { r.Text = strings.Repeat(w.word("text"), 10_000) },
		"another dimension": func(r *memdv1.Row) { r.Vector = r.Vector[:32] },
		"a zero vector":     func(r *memdv1.Row) { r.Vector = make([]float32, dimension) },
		"large metadata":    func(r *memdv1.Row) { r.Metadata = map[string]string{"k": strings.Repeat(w.word("value"), 1000)} },
		"sources of a raw row": func(r *memdv1.Row) {
			r.Sources = []*memdv1.Source{{Source: &memdv1.Source_MemoryId{MemoryId: uuid.NewString()}}}
		},
		"a source that is gone": func(r *memdv1.Row) {
			r.Kind = memdv1.Kind_KIND_FACT
			r.Sources = []*memdv1.Source{{Source: &memdv1.Source_MemoryId{MemoryId: uuid.NewString()}}}
		},
		"a time to come":         func(r *memdv1.Row) { r.SourceTime = timestamppb.New(time.Now().Add(time.Hour)) },
		"an expiry that is past": func(r *memdv1.Row) { r.ExpiresAt = timestamppb.New(time.Unix(1, 0)) },
		"a memory id that is not": func(r *memdv1.Row) {
			r.Kind = memdv1.Kind_KIND_FACT
			r.Sources = []*memdv1.Source{{Source: &memdv1.Source_MemoryId{MemoryId: w.word("id")}}}
		},
		"a NUL in a user id": func(r *memdv1.Row) { r.Scope = userScope(w.word("user") + "\x00") },
	} {
		r := row()
		spoil(r)
		if _, err := w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{r}}); err != nil {
			w.answers.add(err)
		} else if what != "a NUL in a user id" {
			w.t.Errorf("Add with %s succeeded", what)
		}
	}
	bad[*memdv1.GetResponse](w, "Get")(w.memory.Get(ctx, &memdv1.GetRequest{Scope: userScope(user), MemoryId: w.word("id")}))
	bad[*memdv1.ListResponse](w, "List")(w.memory.List(ctx, &memdv1.ListRequest{Scope: userScope(user), PageToken: w.word("token")}))
	bad[*memdv1.SearchResponse](w, "Search")(w.memory.Search(ctx, &memdv1.SearchRequest{Scope: userScope(user), Text: w.word("query"), Vector: w.direction()[:3]}))
	bad[*memdv1.ForgetUserResponse](w, "ForgetUser")(w.erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{App: app, UserId: user, RequestId: w.word("request")}))
	bad[*memdv1.GetTenantResponse](w, "GetTenant")(w.admin.GetTenant(ctx, &memdv1.GetTenantRequest{Name: w.word("tenant")}))

	w.failedStatements()

	// The key service is away, for a user of whose tenant nothing is cached: a
	// fresh key is needed after every rotation.
	stop := w.d.KMS.Inject(kmsemu.Fault{Method: "Decrypt", Code: codes.Unavailable, Times: 1_000_000})
	good[*memdv1.ForgetUserResponse](w, "ForgetUser")(w.forgetLater(w.word("user")))
	stop()
	bad[*memdv1.AddResponse](w, "an Add that is cut off")(func() (*memdv1.AddResponse, error) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return w.memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row()}})
	}())
	// Bytes that are no message at all.
	for _, kind := range []string{"application/json", "application/proto", "application/grpc", "text/plain"} {
		r, err := http.Post("http://"+w.d.Address+"/memd.v1.MemoryService/Add", kind, strings.NewReader(`{"rows":[{"text":"`+w.word("text")+`", "kind":`))
		if err != nil {
			w.t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		w.answers.add(errors.New(string(b)))
	}
}

// forgetLater forgets somebody while the key service is away for a moment.
func (w *world) forgetLater(user string) (*memdv1.ForgetUserResponse, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 300*time.Millisecond)
	defer cancel()
	r, err := w.erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{App: app, UserId: user, RequestId: uuid.NewString()})
	if err != nil {
		w.answers.add(err)
		return nil, nil
	}
	return r, nil
}

// failedStatements fails in the database with content in hand: whatever the
// server and the driver say of it is logged.
func (w *world) failedStatements() {
	ctx := w.t.Context()
	log, err := os.OpenFile(filepath.Join(w.dir, "memd.log"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	defer log.Close()
	for _, sql := range []string{
		`SELECT $1::text::int`, `SELECT 1/0 WHERE $1::text <> ''`, `SELECT $1::text::uuid`, `SELECT $1::text::jsonb`,
		`INSERT INTO memd.subjects (tenant_no, subject_no, app, kind, user_ref, sealed_user_id, admitted_at) VALUES (1, 1, $1, 9, '', '', now())`,
		`INSERT INTO memd.principals (key_id, name, roles, secret_hash, created_at) VALUES (gen_random_uuid(), $1, 1, '', now())`,
		`DO $$ BEGIN RAISE EXCEPTION 'no'; END $$; -- $1`,
	} {
		err := w.d.Server.Pool.With(ctx, func(db pg.DB) error {
			_, err := db.Exec(ctx, sql, w.word("parameter"))
			return err
		})
		if err == nil {
			w.t.Errorf("%s succeeded", sql)
		}
		w.answers.add(err)
		fmt.Fprintln(log, err)
	}
}
