package server

import (
	"context"
	"encoding/hex"
	"log/slog"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/export"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

type exportHandler struct {
	pool   *pg.Pool
	keys   *shred.Keyring
	store  export.Store
	clock  memd.Clock
	logger *slog.Logger
}

var _ memdv1connect.ExportServiceHandler = (*exportHandler)(nil)

func (h *exportHandler) StartExport(ctx context.Context, req *memdv1.StartExportRequest) (*memdv1.StartExportResponse, error) {
	t, id, err := h.about(ctx, req.GetTenant(), req.GetExportId())
	if err != nil {
		return nil, err
	}
	if h.store == nil {
		return nil, &memd.RefusalError{Class: memd.ErrExportsUnavailable, Problem: "memd serve and memd worker need --exports"}
	}
	if t.Epoch == 0 || t.State >= tenants.StatePurging {
		return nil, memd.ErrTenantInactive
	}
	r := export.Request{
		ID: id, Scope: memd.Scope{App: req.GetApp(), UserID: req.GetUserId()}, Recipients: req.GetRecipients(),
		Life: durationOf(req.GetLife()), By: principalOf(ctx).Key,
	}
	var e export.Export
	err = h.keys.Do(ctx, t.No, t.Epoch, func(k *shred.Keys) error {
		return h.pool.With(ctx, func(db pg.DB) (err error) {
			e, err = export.Start(ctx, db, k, h.clock.Now(), r)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	h.log(ctx, "an export is started", t, id)
	return &memdv1.StartExportResponse{Export: exportToProto(e, nil)}, nil
}

func (h *exportHandler) GetExport(ctx context.Context, req *memdv1.GetExportRequest) (*memdv1.GetExportResponse, error) {
	t, id, err := h.about(ctx, req.GetTenant(), req.GetExportId())
	if err != nil {
		return nil, err
	}
	var e export.Export
	var links []export.Link
	err = h.pool.With(ctx, func(db pg.DB) (err error) {
		if e, err = export.Get(ctx, db, t.No, id); err == nil {
			links, err = export.Links(ctx, db, t.No, id)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &memdv1.GetExportResponse{Export: exportToProto(e, links)}, nil
}

func (h *exportHandler) ListExports(ctx context.Context, req *memdv1.ListExportsRequest) (*memdv1.ListExportsResponse, error) {
	t, err := tenantNamed(ctx, h.pool, req.GetTenant())
	if err != nil {
		return nil, err
	}
	res := &memdv1.ListExportsResponse{}
	err = h.pool.With(ctx, func(db pg.DB) error {
		all, err := export.List(ctx, db, t.No)
		for _, e := range all {
			res.Exports = append(res.Exports, exportToProto(e, nil))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

func (h *exportHandler) DeleteExport(ctx context.Context, req *memdv1.DeleteExportRequest) (*memdv1.DeleteExportResponse, error) {
	t, id, err := h.about(ctx, req.GetTenant(), req.GetExportId())
	if err != nil {
		return nil, err
	}
	var e export.Export
	err = h.pool.With(ctx, func(db pg.DB) (err error) {
		e, err = export.End(ctx, db, t.No, id, h.clock.Now())
		return err
	})
	if err != nil {
		return nil, err
	}
	h.log(ctx, "an export is ended", t, id)
	return &memdv1.DeleteExportResponse{Export: exportToProto(e, nil)}, nil
}

func (h *exportHandler) CreateExportLink(ctx context.Context, req *memdv1.CreateExportLinkRequest) (*memdv1.CreateExportLinkResponse, error) {
	t, id, err := h.about(ctx, req.GetTenant(), req.GetExportId())
	if err != nil {
		return nil, err
	}
	var l export.Link
	var secret string
	err = h.pool.With(ctx, func(db pg.DB) (err error) {
		l, secret, err = export.MakeLink(ctx, db, t.No, id, principalOf(ctx).Key, h.clock.Now(), durationOf(req.GetLife()))
		return err
	})
	if err != nil {
		return nil, err
	}
	h.log(ctx, "a link to an export is made", t, id, slog.String("link", l.ID.String()))
	return &memdv1.CreateExportLinkResponse{Link: linkToProto(l), Path: downloads + secret}, nil
}

func (h *exportHandler) RevokeExportLink(ctx context.Context, req *memdv1.RevokeExportLinkRequest) (*memdv1.RevokeExportLinkResponse, error) {
	t, id, err := h.about(ctx, req.GetTenant(), req.GetLinkId())
	if err != nil {
		return nil, err
	}
	err = h.pool.With(ctx, func(db pg.DB) error { return export.RevokeLink(ctx, db, t.No, id, h.clock.Now()) })
	if err != nil {
		return nil, err
	}
	h.log(ctx, "a link to an export is revoked", t, uuid.Nil, slog.String("link", id.String()))
	return &memdv1.RevokeExportLinkResponse{}, nil
}

// about resolves which tenant's what a request is about.
func (h *exportHandler) about(ctx context.Context, tenant, id string) (tenants.Tenant, uuid.UUID, error) {
	t, err := tenantNamed(ctx, h.pool, tenant)
	if err != nil {
		return t, uuid.Nil, err
	}
	parsed, err := idFromProto("id", id)
	return t, parsed, err
}

func (h *exportHandler) log(ctx context.Context, what string, t tenants.Tenant, id uuid.UUID, more ...slog.Attr) {
	h.logger.LogAttrs(ctx, slog.LevelInfo, what, append([]slog.Attr{
		slog.String("tenant", t.Name), slog.String("export", id.String()), slog.String("by", principalOf(ctx).Key.String()),
	}, more...)...)
}

func exportToProto(e export.Export, links []export.Link) *memdv1.Export {
	p := &memdv1.Export{
		ExportId: e.ID.String(), OfUser: e.Kind == export.KindUser, State: memdv1.ExportState(e.State), Recipients: e.Recipients,
		RequestedByKeyId: e.By.String(), RequestedAt: timestampToProto(e.RequestedAt), ExpiresAt: timestampToProto(e.ExpiresAt),
		Subjects: e.Subjects, Parts: e.Parts, Bytes: e.Bytes, Rebuilt: e.Rebuilt, ManifestSha256: hex.EncodeToString(e.ManifestSHA256),
		ReadyAt: timestampToProto(e.ReadyAt), EndedAt: timestampToProto(e.EndedAt), EndReason: e.EndReason,
		FilesDeleted: e.FilesDeleted, DeletedAt: timestampToProto(e.DeletedAt), Tries: int32(e.Tries), Failure: e.Failure,
		Counts: &memdv1.ExportCounts{
			Subjects: e.Counts.Subjects, Sessions: e.Counts.Sessions, Events: e.Counts.Events, State: e.Counts.State,
			Artifacts: e.Counts.Artifacts, ArtifactBytes: e.Counts.ArtifactBytes, Memories: e.Counts.Memories, Unreadable: e.Counts.Unreadable,
		},
	}
	for _, l := range links {
		p.Links = append(p.Links, linkToProto(l))
	}
	return p
}

func linkToProto(l export.Link) *memdv1.ExportLink {
	return &memdv1.ExportLink{
		LinkId: l.ID.String(), CreatedByKeyId: l.By.String(), CreatedAt: timestampToProto(l.CreatedAt), ExpiresAt: timestampToProto(l.ExpiresAt),
		RevokedAt: timestampToProto(l.RevokedAt), Uses: l.Uses, LastUsedAt: timestampToProto(l.LastUsedAt),
	}
}
