package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"filippo.io/age"
	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/types/known/timestamppb"

	"forgettable.dev/memd/export"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// fakeExports is the part of the fake server that exports: an archive, of one user
// who has nothing, is ready when it is looked at for the first time.
type fakeExports struct {
	memdv1connect.UnimplementedExportServiceHandler

	exportMu sync.Mutex
	exports  []*memdv1.Export
	archives map[string][]byte // by secret of the link
}

var exportedAt = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func (f *fakeExports) find(id string) (*memdv1.Export, error) {
	for _, e := range f.exports {
		if e.GetExportId() == id {
			return e, nil
		}
	}
	return nil, reasonError(connect.CodeNotFound, memdv1.Reason_REASON_NOT_FOUND, "not found")
}

func (f *fakeExports) StartExport(_ context.Context, req *memdv1.StartExportRequest) (*memdv1.StartExportResponse, error) {
	f.exportMu.Lock()
	defer f.exportMu.Unlock()
	e := &memdv1.Export{
		ExportId: req.GetExportId(), OfUser: req.GetUserId() != "", State: memdv1.ExportState_EXPORT_STATE_MAKING, Subjects: 1,
		Recipients: req.GetRecipients(), RequestedAt: timestamppb.New(exportedAt), ExpiresAt: timestamppb.New(exportedAt.Add(export.DefaultLife)),
		Counts: &memdv1.ExportCounts{},
	}
	f.exports = append([]*memdv1.Export{e}, f.exports...)
	return &memdv1.StartExportResponse{Export: e}, nil
}

func (f *fakeExports) GetExport(_ context.Context, req *memdv1.GetExportRequest) (*memdv1.GetExportResponse, error) {
	f.exportMu.Lock()
	defer f.exportMu.Unlock()
	e, err := f.find(req.GetExportId())
	if err != nil {
		return nil, err
	}
	if e.GetState() == memdv1.ExportState_EXPORT_STATE_MAKING {
		archive, sum := fakeArchive(e.GetRecipients()[0])
		e.State, e.ManifestSha256, e.Bytes, e.Parts = memdv1.ExportState_EXPORT_STATE_READY, sum, int64(len(archive)), 1
		e.Counts = &memdv1.ExportCounts{Subjects: 1}
	}
	return &memdv1.GetExportResponse{Export: e}, nil
}

func (f *fakeExports) ListExports(context.Context, *memdv1.ListExportsRequest) (*memdv1.ListExportsResponse, error) {
	f.exportMu.Lock()
	defer f.exportMu.Unlock()
	return &memdv1.ListExportsResponse{Exports: f.exports}, nil
}

func (f *fakeExports) CreateExportLink(_ context.Context, req *memdv1.CreateExportLinkRequest) (*memdv1.CreateExportLinkResponse, error) {
	f.exportMu.Lock()
	defer f.exportMu.Unlock()
	e, err := f.find(req.GetExportId())
	if err != nil {
		return nil, err
	}
	if e.GetState() != memdv1.ExportState_EXPORT_STATE_READY {
		return nil, reasonError(connect.CodeFailedPrecondition, memdv1.Reason_REASON_EXPORT_NOT_READY, "the archive has ended")
	}
	archive, sum := fakeArchive(e.GetRecipients()[0])
	e.ManifestSha256 = sum // Sealed anew, it is another file.
	secret := fmt.Sprint("secret-", len(f.archives))
	f.archives[secret] = archive
	link := &memdv1.ExportLink{LinkId: secret[len("secret-"):], ExpiresAt: timestamppb.New(exportedAt.Add(24 * time.Hour))}
	e.Links = append(e.Links, link)
	return &memdv1.CreateExportLinkResponse{Link: link, Path: "/exports/" + secret}, nil
}

func (f *fakeExports) RevokeExportLink(_ context.Context, req *memdv1.RevokeExportLinkRequest) (*memdv1.RevokeExportLinkResponse, error) {
	f.exportMu.Lock()
	defer f.exportMu.Unlock()
	delete(f.archives, "secret-"+req.GetLinkId())
	return &memdv1.RevokeExportLinkResponse{}, nil
}

func (f *fakeExports) DeleteExport(_ context.Context, req *memdv1.DeleteExportRequest) (*memdv1.DeleteExportResponse, error) {
	f.exportMu.Lock()
	defer f.exportMu.Unlock()
	e, err := f.find(req.GetExportId())
	if err != nil {
		return nil, err
	}
	clear(f.archives)
	e.State, e.EndReason = memdv1.ExportState_EXPORT_STATE_ENDED, "asked"
	return &memdv1.DeleteExportResponse{Export: e}, nil
}

// ServeHTTP serves archives to whoever has a link.
func (f *fakeExports) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.exportMu.Lock()
	archive, ok := f.archives[r.PathValue("secret")]
	f.exportMu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	sum := sha256.Sum256(archive)
	w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:])+`"`)
	http.ServeContent(w, r, "", exportedAt, bytes.NewReader(archive))
}

// fakeArchive is an archive of one user who has nothing, and its manifest's sum.
func fakeArchive(recipient string) ([]byte, string) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	to, err := age.ParseX25519Recipient(recipient)
	must(err)
	seal := func(content []byte) []byte {
		var b bytes.Buffer
		w, err := age.Encrypt(&b, to)
		must(err)
		_, err = w.Write(content)
		must(err)
		must(w.Close())
		return b.Bytes()
	}
	pack := func(files ...any) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := 0; i < len(files); i += 2 {
			content := files[i+1].([]byte)
			must(w.WriteHeader(&tar.Header{Name: files[i].(string), Size: int64(len(content)), Mode: 0o600}))
			_, err := w.Write(content)
			must(err)
		}
		must(w.Close())
		return b.Bytes()
	}
	subject, err := json.Marshal(export.SubjectRecord{Number: "1.1", App: "chat", UserID: "alice"})
	must(err)
	part := seal(pack("subjects/1.1/subject.json", subject))
	sum := sha256.Sum256(part)
	counts := export.Counts{Subjects: 1}
	manifest, err := json.Marshal(export.Manifest{
		Format: export.Format, Tenant: "acme", Kind: "user", MadeAt: exportedAt, Totals: counts,
		Parts: []export.Part{{Name: "part-000001.age", Size: int64(len(part)), SHA256: hex.EncodeToString(sum[:]), Counts: counts}},
	})
	must(err)
	sealed := seal(manifest)
	sum = sha256.Sum256(sealed)
	return pack("part-000001.age", part, "manifest.age", sealed), hex.EncodeToString(sum[:])
}

// customer gives a script two customers' keys: acme.key with $RECIPIENT, and
// other.key.
func customer(env *testscript.Env) error {
	for _, name := range []string{"other", "acme"} {
		identity, err := age.GenerateX25519Identity()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(env.WorkDir, name+".key"), []byte(identity.String()+"\n"), 0o600); err != nil {
			return err
		}
		env.Setenv("RECIPIENT", identity.Recipient().String())
	}
	return nil
}
