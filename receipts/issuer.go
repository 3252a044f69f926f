package receipts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred/ledger"
)

// Issuer signs receipts and appends them to their tenants' logs. All fields but
// Clock are required. Safe for concurrent use, by any number of processes.
type Issuer struct {
	Pool   *pg.Pool
	Signer *Signer
	// Ledger holds every entry, beside the database. With several locations,
	// ledger.Mirror, in the same order everywhere.
	Ledger ledger.Ledger
	// Clock is the system's if nil.
	Clock memd.Clock
}

// EntryName is the ledger's name for an entry of a tenant's log.
func EntryName(tenant memd.TenantNo, index uint64) string {
	return fmt.Sprintf("receipts/%d/%016d", int64(tenant), index)
}

// Issue signs a receipt, appends it to the tenant's log and returns it with its
// proof. When it returns nil, every ledger location and the database have it.
//
// It sets Times.Issued, and Prior in a final receipt, whose provisional one must
// have been issued before. One request has one receipt of each stage: issuing
// again, whatever r says, returns the one that was issued first, byte for byte.
// Safe to repeat after any error.
//
// Errors: memd.InvalidError of New; memd.ErrCorrupt when ledger and database do
// not hold one log; those of the ledger and the database pass through.
func (i *Issuer) Issue(ctx context.Context, tenant memd.TenantNo, r Receipt) (Bundle, error) {
	r.Times.Issued = i.now()
	if err := checkEarly(r); err != nil {
		return Bundle{}, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return Bundle{}, fmt.Errorf("issuing a receipt: %w", err)
		}
		log, err := i.look(ctx, tenant, r.RequestID)
		if err != nil {
			return Bundle{}, err
		}
		if b, ok := log.issued[r.Stage]; ok {
			return b, nil
		}
		name := EntryName(tenant, log.line.size())
		data, err := i.Ledger.Get(ctx, name)
		switch {
		case err == nil:
			// Somebody's entry that the database lacks: a writer who died, one who
			// is about to write it, or the database was rolled back.
			if err := i.takeOver(ctx, tenant, log, name, data); err != nil {
				return Bundle{}, err
			}
			continue
		case !errors.Is(err, memd.ErrNotFound):
			return Bundle{}, fmt.Errorf("looking for the log's next entry: %w", err)
		}
		b, err := i.build(tenant, log, r)
		if err != nil {
			return Bundle{}, err
		}
		if data, err = b.Encode(); err != nil {
			return Bundle{}, err
		}
		err = ledger.PutSame(ctx, i.Ledger, name, data)
		if errors.Is(err, memd.ErrExists) {
			continue // Another issuer has the place; the ledger now tells whose it is.
		}
		if err != nil {
			return Bundle{}, fmt.Errorf("keeping a receipt: %w", err)
		}
		if err := i.insert(ctx, tenant, b, data); err != nil {
			return Bundle{}, err
		}
	}
}

// checkEarly refuses a receipt before anything is read or written, with what the
// issuer sets put in its place.
func checkEarly(r Receipt) error {
	r.Prior = nil
	if r.Stage == Final {
		r.Prior = &Digest{1}
	}
	_, err := New(r)
	return err
}

func (i *Issuer) now() time.Time {
	if i.Clock == nil {
		return memd.SystemClock{}.Now()
	}
	return i.Clock.Now()
}

// head is a tenant's log as one statement saw it.
type head struct {
	issued map[Stage]Bundle // of the request
	line   border
	last   Digest // leaf of the last entry; zero when there is none
}

// look reads the log's end and the request's receipts in one snapshot: a request
// that is not among the entries before the end has none there.
func (i *Issuer) look(ctx context.Context, tenant memd.TenantNo, request uuid.UUID) (head, error) {
	var rows []logRow
	err := i.Pool.With(ctx, func(db pg.DB) (err error) { rows, err = readHead(ctx, db, tenant, request); return err })
	if err != nil {
		return head{}, err
	}
	h := head{issued: map[Stage]Bundle{}, line: newBorder()}
	for _, row := range rows {
		b, err := ParseBundle(row.Bundle)
		if err != nil {
			return head{}, fmt.Errorf("tenant %s, receipt number %d: %w", tenant, row.Index, err)
		}
		if row.Ours {
			h.issued[b.Entry.Receipt.Stage] = b
			continue
		}
		if h.last, err = b.Entry.Leaf(); err != nil {
			return head{}, err
		}
		if h.line, err = borderBefore(b.Entry.Index, b.Inclusion); err != nil {
			return head{}, err
		}
		if err := h.line.append(h.last); err != nil {
			return head{}, err
		}
	}
	return h, nil
}

// takeOver copies an entry of the ledger into the database, after it was seen to
// be the log's next, and completes the ledger's other locations.
func (i *Issuer) takeOver(ctx context.Context, tenant memd.TenantNo, log head, name string, data []byte) error {
	b, err := ParseBundle(data)
	if err != nil {
		return fmt.Errorf("tenant %s, ledger entry %d: %w", tenant, log.line.size(), err)
	}
	var keys *Keys
	err = i.Pool.With(ctx, func(db pg.DB) (err error) { keys, err = PublicKeys(ctx, db); return err })
	if err != nil {
		return err
	}
	if _, err := b.Verify(keys); err != nil {
		return fmt.Errorf("tenant %s, ledger entry %d: %w", tenant, log.line.size(), err)
	}
	if b.Entry.Origin != Origin(i.Signer.installation, tenant) || b.Entry.Index != log.line.size() ||
		b.Entry.Previous != log.last || !slices.Equal(b.Inclusion, log.line.proofOfNext()) {
		return fmt.Errorf("tenant %s: %w", tenant, corrupt("ledger's next entry does not continue the database's log"))
	}
	if err := ledger.PutSame(ctx, i.Ledger, name, data); err != nil {
		if errors.Is(err, memd.ErrExists) {
			return fmt.Errorf("tenant %s: %w", tenant, corrupt("ledger's locations hold different entries"))
		}
		return fmt.Errorf("completing the ledger: %w", err)
	}
	return i.insert(ctx, tenant, b, data)
}

// build makes and signs the log's next entry.
func (i *Issuer) build(tenant memd.TenantNo, log head, r Receipt) (Bundle, error) {
	r.Prior = nil
	if r.Stage == Final {
		provisional, ok := log.issued[Provisional]
		if !ok {
			return Bundle{}, &memd.InvalidError{Field: "stage", Problem: "must be provisional before it is final"}
		}
		prior, err := provisional.Entry.Leaf()
		if err != nil {
			return Bundle{}, err
		}
		r.Prior = &prior
	}
	r, err := New(r)
	if err != nil {
		return Bundle{}, err
	}
	b := Bundle{
		Format: BundleFormat, Inclusion: log.line.proofOfNext(),
		Entry: Entry{
			Index: log.line.size(), Key: i.Signer.Key(), Origin: Origin(i.Signer.installation, tenant), Previous: log.last, Receipt: r,
		},
	}
	entry, err := b.Entry.encode()
	if err != nil {
		return Bundle{}, err
	}
	if b.Signature, err = i.Signer.sign(entry); err != nil {
		return Bundle{}, err
	}
	if err := log.line.append(leafHash(entry)); err != nil {
		return Bundle{}, err
	}
	root, err := log.line.root()
	if err != nil {
		return Bundle{}, err
	}
	b.Checkpoint, err = i.Signer.checkpoint(Checkpoint{Origin: b.Entry.Origin, Size: log.line.size(), Root: root})
	return b, err
}

func (i *Issuer) insert(ctx context.Context, tenant memd.TenantNo, b Bundle, data []byte) error {
	return i.Pool.With(ctx, func(db pg.DB) error { return insertEntry(ctx, db, tenant, b, data) })
}
