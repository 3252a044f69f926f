package server

import (
	"context"
	"strings"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/receipts"
)

func (h *erasureHandler) RemoveSurvivors(ctx context.Context, req *memdv1.RemoveSurvivorsRequest) (*memdv1.RemoveSurvivorsResponse, error) {
	c, id, err := h.named(ctx, req.GetTenant(), req.GetRequestId())
	if err != nil {
		return nil, err
	}
	rows := make([]memd.RowRef, len(req.GetRows()))
	for i, row := range req.GetRows() {
		rows[i].Table, rows[i].ID, _ = strings.Cut(row, " ")
	}
	if err := h.erasure.RemoveSurvivors(ctx, c, id, rows); err != nil {
		return nil, err
	}
	return &memdv1.RemoveSurvivorsResponse{}, nil
}

func (h *erasureHandler) GetReceiptKeys(ctx context.Context, _ *memdv1.GetReceiptKeysRequest) (*memdv1.GetReceiptKeysResponse, error) {
	var keys *receipts.Keys
	err := h.erasure.Pool.With(ctx, func(db pg.DB) (err error) {
		keys, err = receipts.PublicKeys(ctx, db)
		return err
	})
	if err != nil {
		return nil, err
	}
	data, err := keys.JSON()
	if err != nil {
		return nil, err
	}
	return &memdv1.GetReceiptKeysResponse{Keyset: data}, nil
}
