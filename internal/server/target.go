package server

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/tenants"
)

type targetHandler struct {
	pool   *pg.Pool
	purge  *purge.Caller
	logger *slog.Logger
}

var _ memdv1connect.TargetServiceHandler = (*targetHandler)(nil)

func (h *targetHandler) CreateTarget(ctx context.Context, req *memdv1.CreateTargetRequest) (*memdv1.CreateTargetResponse, error) {
	tenant, err := h.tenant(ctx, req.GetTenant())
	if err != nil {
		return nil, err
	}
	caller := principalOf(ctx)
	n := purge.New{
		Tenant: tenant.No, Name: req.GetName(), Kind: purge.Kind(req.GetKind()), Order: purge.Order(req.GetOrder()),
		BestEffort: req.GetBestEffort(), URL: req.GetUrl(), Timeout: durationOf(req.GetTimeout()),
		AllowPrivate: req.GetAllowPrivate(), Path: req.GetPath(), Retention: durationOf(req.GetRetention()),
		Fields: purge.LogFields{
			User: req.GetLogFields().GetUser(), Session: req.GetLogFields().GetSession(), App: req.GetLogFields().GetApp(),
		},
		Secret: req.GetSecret(), CreatedBy: caller.Key,
	}
	// A tenant's operator must not make memd call what is behind its firewall, nor
	// erase lines of a log that other tenants share.
	if n.Inside() && caller.Tenant != auth.Installation {
		return nil, memd.ErrPermissionDenied
	}
	var t purge.Target
	var secret string
	err = h.pool.With(ctx, func(db pg.DB) (err error) {
		t, secret, err = h.purge.Create(ctx, db, n)
		return err
	})
	if err != nil {
		return nil, err
	}
	h.logger.LogAttrs(ctx, slog.LevelInfo, "purge target created", slog.String("tenant", tenant.Name),
		slog.String("target", t.Name), slog.String("kind", t.Kind.String()), slog.String("by", caller.Key.String()))
	return &memdv1.CreateTargetResponse{Target: targetToProto(t, tenant.Name), Secret: secret}, nil
}

func (h *targetHandler) ListTargets(ctx context.Context, req *memdv1.ListTargetsRequest) (*memdv1.ListTargetsResponse, error) {
	tenant, err := h.tenant(ctx, req.GetTenant())
	if err != nil {
		return nil, err
	}
	var ts []purge.Target
	err = h.pool.With(ctx, func(db pg.DB) (err error) {
		ts, err = purge.Targets(ctx, db, tenant.No)
		return err
	})
	if err != nil {
		return nil, err
	}
	res := &memdv1.ListTargetsResponse{}
	for _, t := range ts {
		res.Targets = append(res.Targets, targetToProto(t, tenant.Name))
	}
	return res, nil
}

func (h *targetHandler) DeleteTarget(ctx context.Context, req *memdv1.DeleteTargetRequest) (*memdv1.DeleteTargetResponse, error) {
	tenant, err := h.tenant(ctx, req.GetTenant())
	if err != nil {
		return nil, err
	}
	err = h.pool.With(ctx, func(db pg.DB) error { return purge.Delete(ctx, db, tenant.No, req.GetName()) })
	if err != nil {
		return nil, err
	}
	h.logger.LogAttrs(ctx, slog.LevelInfo, "purge target deleted", slog.String("tenant", tenant.Name),
		slog.String("target", req.GetName()), slog.String("by", principalOf(ctx).Key.String()))
	return &memdv1.DeleteTargetResponse{}, nil
}

func (h *targetHandler) TestTarget(ctx context.Context, req *memdv1.TestTargetRequest) (*memdv1.TestTargetResponse, error) {
	tenant, err := h.tenant(ctx, req.GetTenant())
	if err != nil {
		return nil, err
	}
	if tenant.State != tenants.StateActive {
		return nil, &memd.RefusalError{Class: memd.ErrTenantInactive, Problem: "since it was suspended, secrets of its targets serve its erasures alone"}
	}
	var t purge.Target
	err = h.pool.With(ctx, func(db pg.DB) (err error) {
		t, err = purge.Get(ctx, db, tenant.No, req.GetName())
		return err
	})
	if err != nil {
		return nil, err
	}
	start := time.Now()
	a, err := h.purge.Test(ctx, t, tenant.Name)
	if a.Code == purge.CodeKey || a.Code == purge.CodeCanceled {
		return nil, err // It is memd that could not do it.
	}
	return &memdv1.TestTargetResponse{
		Ok: err == nil, Code: string(a.Code), Count: a.Before, Took: durationpb.New(time.Since(start)), Tries: int32(a.Tries),
	}, nil
}

// tenant is whose targets a request is about.
func (h *targetHandler) tenant(ctx context.Context, name string) (tenants.Tenant, error) {
	return tenantNamed(ctx, h.pool, name)
}

// tenantNamed resolves which tenant a request is about. A tenant's key need not say,
// and sees its own alone.
func tenantNamed(ctx context.Context, pool *pg.Pool, name string) (tenants.Tenant, error) {
	p := principalOf(ctx)
	if name == "" {
		if p.Tenant == auth.Installation {
			return tenants.Tenant{}, &memd.InvalidError{Field: "tenant", Problem: "must be given"}
		}
		name = p.TenantName
	}
	if !sees(ctx, name) {
		return tenants.Tenant{}, memd.ErrNotFound
	}
	var t tenants.Tenant
	err := pool.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.Get(ctx, db, name)
		return err
	})
	return t, err
}

func targetToProto(t purge.Target, tenant string) *memdv1.Target {
	p := &memdv1.Target{
		TargetId: t.ID.String(), Tenant: tenant, Name: t.Name, Kind: memdv1.TargetKind(t.Kind), Order: memdv1.TargetOrder(t.Order),
		Required: t.Required, Url: t.URL, Timeout: durationpb.New(t.Timeout), AllowPrivate: t.AllowPrivate,
		Path: t.Path, CreatedAt: timestampToProto(t.CreatedAt),
	}
	if t.Retention > 0 {
		p.Retention = durationpb.New(t.Retention)
	}
	if t.Fields != (purge.LogFields{}) {
		p.LogFields = &memdv1.LogFields{User: t.Fields.User, Session: t.Fields.Session, App: t.Fields.App}
	}
	if t.CreatedBy != uuid.Nil {
		p.CreatedBy = t.CreatedBy.String()
	}
	return p
}

// durationOf is 0 for a duration that is not set.
func durationOf(d *durationpb.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return d.AsDuration()
}
