package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/export"
	"forgettable.dev/memd/internal/pg"
)

// downloads is where links to archives lead: this, and a secret.
const downloads = "/exports/"

// downloader streams an archive to whoever has a link to it. The link is all that
// is asked for, and asked again before each file of the archive; whatever is wrong
// with one is answered alike. The secret is in no log.
type downloader struct {
	pool    *pg.Pool
	store   export.Store
	clock   memd.Clock
	logger  *slog.Logger
	idle    time.Duration
	streams streams
}

// ServeHTTP implements http.Handler.
func (d *downloader) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	release, err := d.streams.enter()
	if err != nil {
		h.Set("Retry-After", "5")
		http.Error(w, "too many downloads at once", http.StatusServiceUnavailable)
		return
	}
	defer release()
	secret := r.PathValue("secret")
	var to export.Followed
	var archive *export.Archive
	err = d.pool.With(r.Context(), func(db pg.DB) (err error) {
		if to, err = export.Follow(r.Context(), db, secret, d.clock.Now(), true); err != nil {
			return err
		}
		archive, err = export.OpenArchive(r.Context(), db, d.store, to.Tenant, to.Export, func() error { return d.holds(r.Context(), secret) })
		return err
	})
	switch {
	case errors.Is(err, memd.ErrNotFound), errors.Is(err, memd.ErrExportNotReady):
		http.Error(w, "no archive is here", http.StatusNotFound)
		return
	case err != nil:
		d.logger.WarnContext(r.Context(), "an export could not be downloaded", "error", err)
		h.Set("Retry-After", "5")
		http.Error(w, "not available now", http.StatusServiceUnavailable)
		return
	}
	defer func() { _ = archive.Close() }()
	d.logger.InfoContext(r.Context(), "a link to an export is followed", "tenant_no", to.Tenant, "export_id", to.Export, "link", to.Link)
	h.Set("Content-Type", "application/x-tar")
	h.Set("Content-Disposition", `attachment; filename="memd-export-`+to.Export.String()+`.tar"`)
	h.Set("ETag", `"`+archive.Digest+`"`)
	paced := &pacedWriter{ResponseWriter: w, control: http.NewResponseController(w), idle: d.idle}
	http.ServeContent(paced, r, "", archive.Made, archive)
}

// holds says whether a link leads anywhere still.
func (d *downloader) holds(ctx context.Context, secret string) error {
	return d.pool.With(ctx, func(db pg.DB) error {
		_, err := export.Follow(ctx, db, secret, d.clock.Now(), false)
		return err
	})
}
