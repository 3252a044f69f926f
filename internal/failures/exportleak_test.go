package failures_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"filippo.io/age"
	"github.com/google/uuid"

	"forgettable.dev/memd/export"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
)

// leak is a tenant's export and who may ask for it.
type leak struct {
	in       *installation
	exports  memdv1connect.ExportServiceClient
	tenant   string
	id       string
	identity *age.X25519Identity
}

func (in *installation) leak(o *operators, tenant string) *leak {
	in.t.Helper()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		in.t.Fatal(err)
	}
	l := &leak{
		in: in, tenant: tenant, id: uuid.NewString(), identity: identity,
		exports: memdv1connect.NewExportServiceClient(in.client(in.urls[0], in.Key(auth.Installation, auth.Operator))),
	}
	o.move(tenant, memdv1.TenantState_TENANT_STATE_SUSPENDED, memdv1.TenantState_TENANT_STATE_EXPORTING)
	_, err = l.exports.StartExport(in.t.Context(), &memdv1.StartExportRequest{
		Tenant: tenant, ExportId: l.id, Recipients: []string{identity.Recipient().String()},
	})
	if err != nil {
		in.t.Fatal(err)
	}
	l.within(memdv1.ExportState_EXPORT_STATE_READY)
	return l
}

func (l *leak) get() *memdv1.Export {
	l.in.t.Helper()
	res, err := l.exports.GetExport(l.in.t.Context(), &memdv1.GetExportRequest{Tenant: l.tenant, ExportId: l.id})
	if err != nil {
		l.in.t.Fatal(err)
	}
	return res.GetExport()
}

func (l *leak) within(state memdv1.ExportState) {
	l.in.t.Helper()
	l.in.within("an export is "+state.String(), func() bool { return l.get().GetState() == state })
}

// link makes a link and returns its id and address, at the other replica.
func (l *leak) link() (id, url string) {
	l.in.t.Helper()
	res, err := l.exports.CreateExportLink(l.in.t.Context(), &memdv1.CreateExportLinkRequest{Tenant: l.tenant, ExportId: l.id})
	if err != nil {
		l.in.t.Fatal(err)
	}
	return res.GetLink().GetLinkId(), l.in.urls[1] + res.GetPath()
}

// fetch returns what an address answers, whoever asks.
func (l *leak) fetch(url string) (status int, body []byte) {
	l.in.t.Helper()
	res, err := l.in.http.Get(url)
	if err == nil {
		body, err = io.ReadAll(res.Body)
		err = errors.Join(err, res.Body.Close())
	}
	if err != nil {
		l.in.t.Fatal(err)
	}
	return res.StatusCode, body
}

// says reports whether an archive says a text, to who has the identity.
func (l *leak) says(archive []byte, text string) bool {
	l.in.t.Helper()
	found := false
	r, err := export.Read(bytes.NewReader(archive), func(string) (io.WriteCloser, error) {
		return &looking{text: text, found: &found}, nil
	}, l.identity)
	if err != nil || len(r.Problems) > 0 {
		l.in.t.Fatalf("%v, %q", err, r.Problems)
	}
	return found
}

// looking looks for a text in what is written to it.
type looking struct {
	bytes.Buffer
	text  string
	found *bool
}

// Close implements io.Closer.
func (l *looking) Close() error {
	*l.found = *l.found || strings.Contains(l.String(), l.text)
	return nil
}

// files are those in the place of archives, with what is in them.
func (in *installation) files() map[string][]byte {
	in.t.Helper()
	out := map[string][]byte{}
	root := os.DirFS(in.Exports)
	err := fs.WalkDir(root, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		out[name], err = fs.ReadFile(root, name)
		return err
	})
	if err != nil {
		in.t.Fatal(err)
	}
	return out
}

// Links that are guessed, another tenant's, revoked or out of the window lead
// nowhere; without the customer's key an archive is noise, in its place, in the
// tables and in the logs; who is erased is in none; and when the window closes
// nothing is left.
func TestFailure_seeds_ExportThatLeaks(t *testing.T) {
	in := setup(t)
	o := in.operators()
	leaving, other := in.customer("leaving"), in.customer("other")
	leaving.add(said("alice", "s1", "alice is allergic to penicillin"), said("bob", "s2", "bob prefers tea"))
	other.add(said("carol", "s3", "carol has a secret"))
	l := in.leak(o, "leaving")

	id, url := l.link()
	status, archive := l.fetch(url)
	if status != http.StatusOK || !l.says(archive, "penicillin") || !l.says(archive, "prefers tea") || l.says(archive, "carol") {
		t.Fatalf("the customer's download: status %d", status)
	}
	for _, clear := range []string{"penicillin", "prefers tea", "alice"} {
		for name, content := range in.files() {
			if bytes.Contains(content, []byte(clear)) || strings.Contains(name, clear) {
				t.Errorf("%s shows %q", name, clear)
			}
		}
		if bytes.Contains(archive, []byte(clear)) {
			t.Errorf("the archive shows %q", clear)
		}
	}
	secret := url[strings.LastIndex(url, "/")+1:]
	for _, quiet := range []string{"penicillin", secret} {
		if strings.Contains(in.Logs.String(), quiet) {
			t.Errorf("a log says %q", quiet)
		}
		for _, table := range []string{"exports", "export_parts", "export_objects", "export_links", "export_erasures"} {
			var n int
			if err := in.db.Raw().QueryRow(t.Context(), `SELECT count(*) FROM memd.`+table+` x WHERE x::text LIKE '%'||$1||'%'`, quiet).Scan(&n); err != nil || n > 0 {
				t.Errorf("%s says %q: %d, %v", table, quiet, n, err)
			}
		}
	}

	// Another tenant's operator sees neither the archive nor its link.
	stranger := memdv1connect.NewExportServiceClient(in.client(in.urls[0], in.Key(other.tenant.No, auth.Operator)))
	for name, try := range map[string]func() error{
		"an archive": func() error {
			_, err := stranger.GetExport(t.Context(), &memdv1.GetExportRequest{ExportId: l.id})
			return err
		},
		"its name": func() error {
			_, err := stranger.GetExport(t.Context(), &memdv1.GetExportRequest{Tenant: "leaving", ExportId: l.id})
			return err
		},
		"a link": func() error {
			_, err := stranger.CreateExportLink(t.Context(), &memdv1.CreateExportLinkRequest{ExportId: l.id})
			return err
		},
		"a link's end": func() error {
			_, err := stranger.RevokeExportLink(t.Context(), &memdv1.RevokeExportLinkRequest{LinkId: id})
			return err
		},
		"an archive's end": func() error {
			_, err := stranger.DeleteExport(t.Context(), &memdv1.DeleteExportRequest{ExportId: l.id})
			return err
		},
	} {
		if err := try(); connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("another tenant's operator and %s: %v", name, err)
		}
	}
	gone := func(what, url string) {
		t.Helper()
		if status, body := l.fetch(url); status != http.StatusNotFound || string(body) != "no archive is here\n" {
			t.Errorf("%s: %d, %d bytes", what, status, len(body))
		}
	}
	gone("a guessed link", url[:len(url)-1]+"_")
	gone("an id for a link", in.urls[1]+"/exports/"+l.id)
	if _, err := l.exports.RevokeExportLink(t.Context(), &memdv1.RevokeExportLinkRequest{Tenant: "leaving", LinkId: id}); err != nil {
		t.Fatal(err)
	}
	gone("a revoked link", url)

	// An erasure kills links and makes the archive anew without the user.
	_, url = l.link()
	report := leaving.forgetUser(1, "alice")
	gone("a link from before an erasure", url)
	if before, after := store(report, "exports"); before == 0 || after != 0 {
		t.Errorf("the erasure's report tells of %d files of archives before, and %d after", before, after)
	}
	l.within(memdv1.ExportState_EXPORT_STATE_READY)
	_, url = l.link()
	if status, archive := l.fetch(url); status != http.StatusOK || l.says(archive, "alice") || !l.says(archive, "prefers tea") {
		t.Errorf("made anew: status %d", status)
	}

	// The window closes.
	o.move("leaving", memdv1.TenantState_TENANT_STATE_SUSPENDED)
	gone("a link out of the window", url)
	l.within(memdv1.ExportState_EXPORT_STATE_DELETED)
	if left := in.files(); len(left) > 0 {
		t.Errorf("%d files are left", len(left))
	}
}
