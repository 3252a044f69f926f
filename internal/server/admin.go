package server

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/tenants"
)

// createWait is how long CreateTenant waits for the worker. It is below
// callLimit, so that a slow worker yields a tenant in state creating and not an
// error.
const createWait = 20 * time.Second

type adminHandler struct {
	erasure *erasure.Service
	pool    *pg.Pool
	clock   memd.Clock
	logger  *slog.Logger
}

var _ memdv1connect.AdminServiceHandler = (*adminHandler)(nil)

func (h *adminHandler) CreateTenant(ctx context.Context, req *memdv1.CreateTenantRequest) (*memdv1.CreateTenantResponse, error) {
	if principalOf(ctx).Tenant != auth.Installation {
		return nil, memd.ErrPermissionDenied
	}
	policy := policyChange(req.GetPolicy()).Apply(tenants.DefaultPolicy())
	first := auth.NewKey{Name: "first", Roles: rolesFromProto(req.GetFirstKeyRoles()), CreatedBy: principalOf(ctx).Key}
	if first.Roles.Any(auth.Approver) {
		return nil, &memd.InvalidError{Field: "first_key_roles", Problem: "cannot be approver: approvers are the installation's"}
	}
	var t tenants.Tenant
	err := h.pool.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.Create(ctx, db, h.clock.Now(), req.GetName(), req.GetDisplayName(), policy)
		return err
	})
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, createWait)
	defer cancel()
	now, err := tenants.WaitActive(waiting, h.pool, t.No)
	switch {
	case err == nil:
		t = now
	case !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
		return nil, err
	}
	h.logger.LogAttrs(ctx, slog.LevelInfo, "tenant is there", slog.String("tenant", t.Name), slog.String("state", t.State.String()))
	res := &memdv1.CreateTenantResponse{Tenant: tenantToProto(t)}
	if first.Roles == 0 || t.State != tenants.StateActive {
		return res, nil
	}
	first.Tenant = t.No
	err = h.pool.InTx(ctx, func(tx pgx.Tx) error {
		k, secret, err := auth.CreateFirst(ctx, tx, h.clock.Now(), first)
		if err == nil && secret != "" {
			res.FirstKey, res.FirstSecret = keyToProto(k, t.Name), secret
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

func (h *adminHandler) GetTenant(ctx context.Context, req *memdv1.GetTenantRequest) (*memdv1.GetTenantResponse, error) {
	t, err := h.tenant(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	shown, err := h.shown(ctx, t)
	return &memdv1.GetTenantResponse{Tenant: shown}, err
}

func (h *adminHandler) ListTenants(ctx context.Context, req *memdv1.ListTenantsRequest) (*memdv1.ListTenantsResponse, error) {
	if p := principalOf(ctx); p.Tenant != auth.Installation {
		t, err := h.tenant(ctx, p.TenantName)
		if err != nil {
			return nil, err
		}
		return &memdv1.ListTenantsResponse{Tenants: []*memdv1.Tenant{tenantToProto(t)}}, nil
	}
	var after string
	if err := decodeToken(req.GetPageToken(), &after); err != nil {
		return nil, err
	}
	size := pageSize(req.GetPageSize())
	var ts []tenants.Tenant
	err := h.pool.With(ctx, func(db pg.DB) (err error) {
		ts, err = tenants.List(ctx, db, after, size+1)
		return err
	})
	if err != nil {
		return nil, err
	}
	res := &memdv1.ListTenantsResponse{}
	if len(ts) > size {
		ts = ts[:size]
		if res.NextPageToken, err = encodeToken(ts[size-1].Name); err != nil {
			return nil, err
		}
	}
	for _, t := range ts {
		res.Tenants = append(res.Tenants, tenantToProto(t))
	}
	return res, nil
}

func (h *adminHandler) SetPolicy(ctx context.Context, req *memdv1.SetPolicyRequest) (*memdv1.SetPolicyResponse, error) {
	if !sees(ctx, req.GetTenant()) {
		return nil, memd.ErrNotFound
	}
	// A rewrite locks the tables of everybody, and quotas are for everybody else.
	if p := req.GetPolicy(); principalOf(ctx).Tenant != auth.Installation &&
		(p.GetCompaction() == memdv1.CompactionMode_COMPACTION_MODE_REWRITE || p.GetQuota() != nil) {
		return nil, memd.ErrPermissionDenied
	}
	var t tenants.Tenant
	err := h.pool.InTx(ctx, func(tx pgx.Tx) (err error) {
		t, err = tenants.SetPolicy(ctx, tx, h.clock.Now(), req.GetTenant(), policyChange(req.GetPolicy()))
		return err
	})
	if err != nil {
		return nil, err
	}
	shown, err := h.shown(ctx, t)
	return &memdv1.SetPolicyResponse{Tenant: shown}, err
}

func (h *adminHandler) CreateApiKey(ctx context.Context, req *memdv1.CreateApiKeyRequest) (*memdv1.CreateApiKeyResponse, error) {
	tenant, err := h.holder(ctx, req.GetTenant())
	if err != nil {
		return nil, err
	}
	caller := principalOf(ctx)
	roles := rolesFromProto(req.GetRoles())
	if err := h.mayMake(ctx, caller, tenant, roles); err != nil {
		return nil, err
	}
	var k auth.Key
	var secret string
	err = h.pool.With(ctx, func(db pg.DB) (err error) {
		k, secret, err = auth.Create(ctx, db, h.clock.Now(), auth.NewKey{
			Tenant: tenant, Name: req.GetName(), Roles: roles, CreatedBy: caller.Key,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	h.logger.LogAttrs(ctx, slog.LevelInfo, "API key created", slog.String("key", k.ID.String()),
		slog.String("tenant", req.GetTenant()), slog.String("roles", k.Roles.String()), slog.String("by", caller.Key.String()))
	return &memdv1.CreateApiKeyResponse{ApiKey: keyToProto(k, req.GetTenant()), Secret: secret}, nil
}

// mayMake keeps those who approve apart from those who ask. An operator makes every
// key but an approver's, save the first of the installation; an approver makes
// approvers alone. So nobody who may ask for what needs an approval gives it to
// themselves, however many keys they make.
func (h *adminHandler) mayMake(ctx context.Context, caller auth.Principal, tenant memd.TenantNo, roles auth.Roles) error {
	switch approves := roles.Any(auth.Approver); {
	case approves && roles != auth.Approver:
		return &memd.InvalidError{Field: "roles", Problem: "must be approver alone, or others without it"}
	case !approves && !caller.Roles.Any(auth.Operator):
		return memd.ErrPermissionDenied
	case !approves || caller.Roles.Any(auth.Approver):
		return nil
	}
	var had bool
	err := h.pool.With(ctx, func(db pg.DB) (err error) {
		had, err = auth.HadApprover(ctx, db, tenant)
		return err
	})
	if err == nil && had {
		return &memd.RefusalError{Class: memd.ErrPermissionDenied, Problem: "only an approver makes another; if the last key is lost, memd first-key --approver"}
	}
	return err
}

func (h *adminHandler) ListApiKeys(ctx context.Context, req *memdv1.ListApiKeysRequest) (*memdv1.ListApiKeysResponse, error) {
	tenant, err := h.holder(ctx, req.GetTenant())
	if err != nil {
		return nil, err
	}
	var after auth.Cursor
	if err := decodeToken(req.GetPageToken(), &after); err != nil {
		return nil, err
	}
	size := pageSize(req.GetPageSize())
	var keys []auth.Key
	err = h.pool.With(ctx, func(db pg.DB) (err error) {
		keys, err = auth.List(ctx, db, tenant, after, size+1)
		return err
	})
	if err != nil {
		return nil, err
	}
	res := &memdv1.ListApiKeysResponse{}
	if len(keys) > size {
		keys = keys[:size]
		if res.NextPageToken, err = encodeToken(keys[size-1].Cursor()); err != nil {
			return nil, err
		}
	}
	for _, k := range keys {
		res.ApiKeys = append(res.ApiKeys, keyToProto(k, req.GetTenant()))
	}
	return res, nil
}

func (h *adminHandler) RevokeApiKey(ctx context.Context, req *memdv1.RevokeApiKeyRequest) (*memdv1.RevokeApiKeyResponse, error) {
	id, err := uuid.Parse(req.GetKeyId())
	if err != nil {
		return nil, &memd.InvalidError{Field: "key_id", Problem: "must be a UUID"}
	}
	caller := principalOf(ctx)
	var k auth.Key
	var tenant tenants.Tenant
	err = h.pool.With(ctx, func(db pg.DB) (err error) {
		if k, err = auth.Revoke(ctx, db, h.clock.Now(), caller.Tenant, id); err != nil {
			return err
		}
		if k.Tenant != auth.Installation {
			tenant, err = tenants.GetByNo(ctx, db, k.Tenant)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	h.logger.LogAttrs(ctx, slog.LevelInfo, "API key revoked",
		slog.String("key", k.ID.String()), slog.String("tenant", tenant.Name), slog.String("by", caller.Key.String()))
	return &memdv1.RevokeApiKeyResponse{ApiKey: keyToProto(k, tenant.Name)}, nil
}

// sees reports whether the caller may know of a tenant, "" being the
// installation.
func sees(ctx context.Context, tenant string) bool {
	p := principalOf(ctx)
	return p.Tenant == auth.Installation || tenant == p.TenantName
}

// tenant returns a tenant that the caller may see.
func (h *adminHandler) tenant(ctx context.Context, name string) (tenants.Tenant, error) {
	if !sees(ctx, name) {
		return tenants.Tenant{}, memd.ErrNotFound
	}
	var t tenants.Tenant
	err := h.pool.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.Get(ctx, db, name)
		return err
	})
	return t, err
}

// shown is a tenant with how far its rows are in its space.
func (h *adminHandler) shown(ctx context.Context, t tenants.Tenant) (*memdv1.Tenant, error) {
	out := tenantToProto(t)
	if t.Policy.Space <= 1 {
		return out, nil
	}
	err := h.pool.With(ctx, func(db pg.DB) error {
		r, ok, err := memory.ReembeddingOf(ctx, db, MemoryTenant(t.No, t.Epoch, t.Policy))
		if ok {
			out.Reembedding = &memdv1.Reembedding{
				StartedAt: timestampToProto(r.StartedAt), FinishedAt: timestampToProto(r.FinishedAt),
				FormerEmbedder: t.Policy.Former.Embedder, FormerDimension: int32(t.Policy.Former.Dimension),
				Done: r.Done, Left: r.Left, Textless: r.Textless,
			}
		}
		return err
	})
	return out, err
}

// holder resolves whose keys a request is about, "" being the installation.
func (h *adminHandler) holder(ctx context.Context, name string) (memd.TenantNo, error) {
	if name == "" && sees(ctx, "") {
		return auth.Installation, nil
	}
	t, err := h.tenant(ctx, name)
	return t.No, err
}
