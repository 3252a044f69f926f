package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"filippo.io/age"
	"github.com/google/uuid"

	"forgettable.dev/memd/export"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// rehearsedArchive is the tenant's archive, and the customer's key to it.
type rehearsedArchive struct {
	id       string
	link     string
	identity *age.X25519Identity
}

// export has the archive made, downloads it from a link and checks it. Where no
// place of archives is set there is none.
func (r *rehearsal) export(ctx context.Context) error {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return fmt.Errorf("making the customer's key: %w", err)
	}
	id := uuid.NewString()
	_, err = r.operator.Exports.StartExport(ctx, &memdv1.StartExportRequest{
		Tenant: r.name, ExportId: id, Recipients: []string{identity.Recipient().String()},
	})
	if reasonOf(err) == memdv1.Reason_REASON_EXPORTS_UNAVAILABLE {
		return nil
	}
	if err != nil {
		return err
	}
	r.archive = &rehearsedArchive{id: id, identity: identity}
	return r.download(ctx, r.c.Users)
}

// exportAnew sees that the user who was forgotten has taken the link with them, and
// is not in what was made anew.
func (r *rehearsal) exportAnew(ctx context.Context) error {
	if r.archive == nil {
		return nil
	}
	if status, _, err := r.fetch(ctx); err != nil || status != http.StatusNotFound {
		return fmt.Errorf("the link from before a user was forgotten answers %d: %w", status, errors.Join(err, errNotRefused))
	}
	return r.download(ctx, r.c.Users-1)
}

func (r *rehearsal) download(ctx context.Context, users int) error {
	e, err := awaitExport(ctx, r.operator, r.name, r.archive.id)
	if err != nil {
		return err
	}
	made, err := r.operator.Exports.CreateExportLink(ctx, &memdv1.CreateExportLinkRequest{Tenant: r.name, ExportId: r.archive.id})
	if err != nil {
		return err
	}
	r.archive.link = strings.TrimRight(r.c.URL, "/") + made.GetPath()
	status, archive, err := r.fetch(ctx)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("the link answers %d", status)
	}
	if err != nil {
		return err
	}
	report, err := export.Read(bytes.NewReader(archive), nil, r.archive.identity)
	switch {
	case err != nil:
		return err
	case len(report.Problems) > 0:
		return fmt.Errorf("the archive is not whole: %s", strings.Join(report.Problems, "; "))
	case report.ManifestSHA256 != e.GetManifestSha256():
		return errors.New("the archive is another than the server says")
	case report.Manifest.Totals.Subjects != int64(users), report.Manifest.Totals.Artifacts != int64(users*r.c.Sessions):
		return fmt.Errorf("the archive has %d users and %d artifacts", report.Manifest.Totals.Subjects, report.Manifest.Totals.Artifacts)
	}
	return nil
}

// fetch follows the link, as the customer does.
func (r *rehearsal) fetch(ctx context.Context) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.archive.link, nil)
	if err != nil {
		return 0, nil, errors.New("the link is no address")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, errors.New("the link leads to no server")
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}
