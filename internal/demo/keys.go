package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/dev"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
)

// keyService is the KMS at hand, as the worker: the identity that may unwrap
// and list. No more could be stolen but an operator's.
type keyService struct{ worker *gcpkms.Client }

func openKeyService(ctx context.Context, d *dev.Dev) (keyService, error) {
	id := d.Identity(kmsemu.Worker)
	worker, err := gcpkms.Open(ctx, gcpkms.Config{URL: id.URL, Token: id.Token})
	if err != nil {
		return keyService{}, fmt.Errorf("opening the key service: %w", err)
	}
	return keyService{worker}, nil
}

func (s keyService) close() error { return s.worker.Close() }

// sealedTree is a key tree as database, dump and ledger hold it.
type sealedTree struct {
	key, version string
	epoch        int64
	sealed       []byte
}

// open unwraps the tree now. The caller drops the keys.
func (s keyService) open(ctx context.Context, t sealedTree) (*shred.Keys, error) {
	tree, _, err := shred.OpenTree(ctx, s.worker, t.key, t.sealed)
	if err != nil {
		return nil, err
	}
	return shred.NewKeys(tree), nil
}

// sealedRow is a row as a database, live or restored, holds it.
type sealedRow struct {
	id                     uuid.UUID
	owner                  memd.Number
	month                  memd.Month
	contributions          []memd.Contribution
	text, vector, metadata []byte
}

// has reports whether a subject owns the row or contributed to it.
func (r *sealedRow) has(subject memd.Number) bool {
	if r.owner == subject {
		return true
	}
	for _, c := range r.contributions {
		if c.Subject == subject {
			return true
		}
	}
	return false
}

// open opens every column and returns the text. It is what a thief with the
// keys would do.
func (r *sealedRow) open(k *shred.Keys) (string, error) {
	s, err := k.Row(r.month, r.contributions)
	if err != nil {
		return "", err
	}
	text := ""
	for _, column := range []struct{ sealed, aad []byte }{
		{r.vector, shred.AADMemoryVector(k.Tenant(), r.owner, r.id)},
		{r.metadata, shred.AADMemoryMetadata(k.Tenant(), r.owner, r.id)},
		{r.text, shred.AADMemoryText(k.Tenant(), r.owner, r.id)},
	} {
		if column.sealed == nil {
			continue
		}
		b, err := s.Open(column.sealed, column.aad)
		if err != nil {
			return "", err
		}
		text = string(bytes.Clone(b))
	}
	return text, nil
}

// reading is what became of trying to open rows.
type reading struct {
	opened, wrong, shredded, other int
}

func (r reading) total() int { return r.opened + r.wrong + r.shredded + r.other }

// read tries to open rows and compares the texts with what was stored.
func read(k *shred.Keys, rows []sealedRow, texts map[string]string) reading {
	var out reading
	for i := range rows {
		text, err := rows[i].open(k)
		switch {
		case err == nil && text == texts[rows[i].id.String()]:
			out.opened++
		case err == nil:
			out.wrong++
		case errors.Is(err, memd.ErrShredded):
			out.shredded++
		default:
			out.other++
		}
	}
	return out
}
