package export

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
	"gocloud.dev/blob"
	_ "gocloud.dev/blob/gcsblob" // gs://
	_ "gocloud.dev/blob/memblob" // mem://
	_ "gocloud.dev/blob/s3blob"  // s3://
	"gocloud.dev/gcerrors"

	"forgettable.dev/memd"
)

// bucket is a Store in a bucket. It must be able to delete: no retention lock, no
// versions kept, and a rule that clears uploads that were broken off.
type bucket struct{ b *blob.Bucket }

func openBucket(ctx context.Context, url string) (Store, error) {
	b, err := blob.OpenBucket(ctx, url)
	if err != nil {
		return nil, unavailable("opening the bucket of exports", err)
	}
	return &bucket{b}, nil
}

// Write implements Store. Cancelling the writer's context is what abandons it.
func (b *bucket) Write(ctx context.Context, name uuid.UUID, write func(io.Writer) error) error {
	ctx, abandon := context.WithCancel(ctx)
	defer abandon()
	w, err := b.b.NewWriter(ctx, name.String(), &blob.WriterOptions{
		ContentType: "application/octet-stream", DisableContentTypeDetection: true,
	})
	if err != nil {
		return unavailable("making an object", err)
	}
	if err := write(w); err != nil {
		abandon()
		_ = w.Close()
		return err
	}
	return wrap("writing an object", w.Close())
}

// Read implements Store.
func (b *bucket) Read(ctx context.Context, name uuid.UUID, offset, length int64) (io.ReadCloser, error) {
	r, err := b.b.NewRangeReader(ctx, name.String(), offset, length, nil)
	switch {
	case gcerrors.Code(err) == gcerrors.NotFound:
		return nil, fmt.Errorf("reading an object: %w", memd.ErrNotFound)
	case err != nil:
		return nil, unavailable("opening an object", err)
	}
	return r, nil
}

// Delete implements Store.
func (b *bucket) Delete(ctx context.Context, name uuid.UUID) error {
	err := b.b.Delete(ctx, name.String())
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil
	}
	return wrap("deleting an object", err)
}

// Exists implements Store.
func (b *bucket) Exists(ctx context.Context, name uuid.UUID) (bool, error) {
	there, err := b.b.Exists(ctx, name.String())
	return there, wrap("looking for an object", err)
}

// List implements Store.
func (b *bucket) List(ctx context.Context, fn func(uuid.UUID) error) error {
	for it := b.b.List(nil); ; {
		o, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return unavailable("listing the bucket of exports", err)
		}
		if id, err := uuid.Parse(o.Key); err == nil && id.String() == o.Key {
			if err := fn(id); err != nil {
				return err
			}
		}
	}
}

// Close implements Store.
func (b *bucket) Close() error { return wrap("closing the bucket of exports", b.b.Close()) }
