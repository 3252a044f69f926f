package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/gcsblob" // gs://
	_ "gocloud.dev/blob/memblob" // mem://
	_ "gocloud.dev/blob/s3blob"  // s3://
	"gocloud.dev/gcerrors"

	"forgettable.dev/memd"
)

// Bucket is a Ledger in a bucket of Google Cloud Storage or S3, or in memory.
// The bucket should have a retention policy or object lock; memd never deletes
// from it.
type Bucket struct {
	bucket *blob.Bucket
	url    string
}

var _ Ledger = (*Bucket)(nil)

// bucketSchemes are the drivers whose IfNotExist is atomic. gocloud's own
// file:// is none of them: it never syncs, and two processes can win one name.
var bucketSchemes = []string{"gs", "s3", "mem"}

// minUploadBuffer is the smallest part size that S3 takes.
const minUploadBuffer = 5 << 20

// OpenBucket opens gs://bucket, s3://bucket or mem://, with the parameters of
// gocloud.dev/blob, credentials from the environment. It does not create the
// bucket.
func OpenBucket(ctx context.Context, url string) (*Bucket, error) {
	scheme, _, _ := strings.Cut(url, "://")
	if !slices.Contains(bucketSchemes, scheme) {
		return nil, &memd.InvalidError{Field: "ledger", Problem: "must be a folder, gs://, s3:// or mem://"}
	}
	b, err := blob.OpenBucket(ctx, url)
	if err != nil {
		return nil, unavailable("opening the ledger bucket", err)
	}
	name, _, _ := strings.Cut(url, "?")
	return &Bucket{bucket: b, url: name}, nil
}

// String names the location for an operator.
func (b *Bucket) String() string { return "bucket " + b.url }

// Close releases the connections.
func (b *Bucket) Close() error {
	if err := b.bucket.Close(); err != nil {
		return unavailable("closing the ledger bucket", err)
	}
	return nil
}

// Put implements Ledger. A client that repeats a request whose answer was lost
// finds its own object and reports memd.ErrExists; PutSame is not misled.
func (b *Bucket) Put(ctx context.Context, name string, data []byte) error {
	if err := checkName(name); err != nil {
		return err
	}
	stored := stamp(name, data)
	err := b.bucket.WriteAll(ctx, name, stored, &blob.WriterOptions{
		IfNotExist:                  true,
		ContentType:                 "application/octet-stream",
		DisableContentTypeDetection: true,
		// One request for the whole object: the condition of an upload in parts is
		// checked at its end at best.
		BufferSize: max(minUploadBuffer, len(stored)+1),
	})
	return b.classify("writing to the ledger", err)
}

// Get implements Ledger.
func (b *Bucket) Get(ctx context.Context, name string) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	stored, err := b.bucket.ReadAll(ctx, name)
	if err != nil {
		return nil, b.classify("reading from the ledger", err)
	}
	return unstamp(name, stored)
}

// List implements Ledger.
func (b *Bucket) List(ctx context.Context, prefix string) ([]string, error) {
	if err := checkPrefix(prefix); err != nil {
		return nil, err
	}
	names := []string{}
	for it := b.bucket.List(&blob.ListOptions{Prefix: prefix}); ; {
		object, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, b.classify("listing the ledger", err)
		}
		// Somebody else's objects in the bucket are none of the ledger's.
		if !object.IsDir && checkName(object.Key) == nil {
			names = append(names, object.Key)
		}
	}
	slices.Sort(names)
	return names, nil
}

func (b *Bucket) classify(doing string, err error) error {
	switch gcerrors.Code(err) {
	case gcerrors.OK:
		return nil
	case gcerrors.NotFound:
		return fmt.Errorf("%s: %w", doing, memd.ErrNotFound)
	case gcerrors.FailedPrecondition, gcerrors.AlreadyExists:
		return fmt.Errorf("%s: %w", doing, memd.ErrExists)
	default:
		return unavailable(doing, err)
	}
}
