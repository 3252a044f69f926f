package gcpkms

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// defaultDestroyDelay is what Cloud KMS gives a key that does not ask.
const defaultDestroyDelay = 30 * 24 * time.Hour

// listPage is the number of versions of one page of a listing.
const listPage = 500

// CreateKey implements shred.KMS.
func (c *Client) CreateKey(ctx context.Context, keyID string, destroyDelay time.Duration) (key, version string, err error) {
	if destroyDelay == 0 {
		destroyDelay = defaultDestroyDelay
	}
	key = c.ring + "/cryptoKeys/" + keyID
	if !keyPattern.MatchString(key) {
		return "", "", &memd.InvalidError{Field: "KMS key id", Problem: "must be 1 to 63 letters, digits, _ or -"}
	}
	want := &kmspb.CryptoKey{
		Purpose: kmspb.CryptoKey_ENCRYPT_DECRYPT,
		VersionTemplate: &kmspb.CryptoKeyVersionTemplate{
			ProtectionLevel: kmspb.ProtectionLevel_SOFTWARE,
			Algorithm:       kmspb.CryptoKeyVersion_GOOGLE_SYMMETRIC_ENCRYPTION,
		},
		DestroyScheduledDuration: durationpb.New(destroyDelay),
	}
	err = c.do(ctx, "CreateCryptoKey", func(ctx context.Context) error {
		_, err := c.api.CreateCryptoKey(ctx, &kmspb.CreateCryptoKeyRequest{
			Parent: c.ring, CryptoKeyId: keyID, CryptoKey: want,
		})
		return err
	})
	if err != nil && !errors.Is(err, memd.ErrExists) {
		return "", "", err
	}
	// The same reading for a key just made and one found, so that a lost answer
	// to the creation needs no path of its own.
	if err := c.checkKey(ctx, key, destroyDelay); err != nil {
		return "", "", err
	}
	version, err = c.firstEnabled(ctx, key)
	return key, version, err
}

// checkKey refuses a key that would not behave as CreateKey promises.
func (c *Client) checkKey(ctx context.Context, key string, destroyDelay time.Duration) error {
	return c.do(ctx, "GetCryptoKey", func(ctx context.Context) error {
		k, err := c.api.GetCryptoKey(ctx, &kmspb.GetCryptoKeyRequest{Name: key})
		switch {
		case err != nil:
			return err
		case k.GetPurpose() != kmspb.CryptoKey_ENCRYPT_DECRYPT:
			return fmt.Errorf("%w: %s is not a symmetric key", memd.ErrExists, key)
		case k.GetRotationPeriod() != nil || k.GetNextRotationTime() != nil:
			return fmt.Errorf("%w: %s rotates automatically", memd.ErrExists, key)
		case k.GetDestroyScheduledDuration().AsDuration() != destroyDelay:
			return fmt.Errorf("%w: %s has another destroy delay", memd.ErrExists, key)
		}
		return nil
	})
}

func (c *Client) firstEnabled(ctx context.Context, key string) (string, error) {
	versions, err := c.List(ctx, key)
	if err != nil {
		return "", err
	}
	pending := ""
	for _, v := range versions {
		switch v.State {
		case shred.VersionEnabled:
			return v.Name, nil
		case shred.VersionPending:
			pending = cmp.Or(pending, v.Name)
		}
	}
	if pending != "" {
		return pending, c.awaitEnabled(ctx, pending)
	}
	return "", fmt.Errorf("%w: %s has no enabled version", memd.ErrShredded, key)
}

// CreateVersion implements shred.KMS. It waits at most Config.MaxElapsed for
// the version to become enabled.
func (c *Client) CreateVersion(ctx context.Context, key string) (string, error) {
	if !keyPattern.MatchString(key) {
		return "", &memd.InvalidError{Field: "KMS key", Problem: "must be the full name of a key"}
	}
	var made *kmspb.CryptoKeyVersion
	err := c.do(ctx, "CreateCryptoKeyVersion", func(ctx context.Context) (err error) {
		made, err = c.api.CreateCryptoKeyVersion(ctx, &kmspb.CreateCryptoKeyVersionRequest{
			Parent: key, CryptoKeyVersion: &kmspb.CryptoKeyVersion{},
		})
		return err
	})
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(made.GetName(), key+"/cryptoKeyVersions/") || !versionPattern.MatchString(made.GetName()) {
		return "", fmt.Errorf("KMS CreateCryptoKeyVersion: %w: the new version belongs to another key", memd.ErrCorrupt)
	}
	if made.GetState() == kmspb.CryptoKeyVersion_ENABLED {
		return made.GetName(), nil
	}
	return made.GetName(), c.awaitEnabled(ctx, made.GetName())
}

// awaitEnabled returns once version is enabled. Pending is tried again like any
// passing trouble; every other state is final.
func (c *Client) awaitEnabled(ctx context.Context, version string) error {
	return c.do(ctx, "GetCryptoKeyVersion", func(ctx context.Context) error {
		v, err := c.get(ctx, version)
		switch {
		case err != nil:
			return err
		case v.State == shred.VersionEnabled:
			return nil
		case v.State == shred.VersionPending:
			return errPending
		case v.State == shred.VersionUnknown:
			return fmt.Errorf("%w: version is in a state that memd does not know", memd.ErrKeyUnavailable)
		default:
			return &shred.VersionStateError{Version: version, State: v.State}
		}
	})
}

// Get implements shred.KMS.
func (c *Client) Get(ctx context.Context, version string) (shred.Version, error) {
	if !versionPattern.MatchString(version) {
		return shred.Version{}, &memd.InvalidError{Field: "KMS key version", Problem: "must be the full name of a version"}
	}
	var found shred.Version
	err := c.do(ctx, "GetCryptoKeyVersion", func(ctx context.Context) (err error) {
		found, err = c.get(ctx, version)
		return err
	})
	return found, err
}

func (c *Client) get(ctx context.Context, version string) (shred.Version, error) {
	v, err := c.api.GetCryptoKeyVersion(ctx, &kmspb.GetCryptoKeyVersionRequest{Name: version})
	if err != nil {
		return shred.Version{}, err
	}
	if v.GetName() != version {
		return shred.Version{}, fmt.Errorf("%w: described another version than was asked for", memd.ErrCorrupt)
	}
	return fromProto(v), nil
}

// List implements shred.KMS. It reads every page or fails.
func (c *Client) List(ctx context.Context, key string) ([]shred.Version, error) {
	if !keyPattern.MatchString(key) {
		return nil, &memd.InvalidError{Field: "KMS key", Problem: "must be the full name of a key"}
	}
	var versions []shred.Version
	err := c.do(ctx, "ListCryptoKeyVersions", func(ctx context.Context) error {
		versions = versions[:0]
		for v, err := range c.api.ListCryptoKeyVersions(ctx, &kmspb.ListCryptoKeyVersionsRequest{Parent: key, PageSize: listPage}).All() {
			if err != nil {
				return err
			}
			if !strings.HasPrefix(v.GetName(), key+"/cryptoKeyVersions/") {
				return fmt.Errorf("%w: listed a version of another key", memd.ErrCorrupt)
			}
			versions = append(versions, fromProto(v))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(versions, func(a, b shred.Version) int { return cmp.Compare(ordinal(a.Name), ordinal(b.Name)) })
	return versions, nil
}

// Destroy implements shred.KMS.
func (c *Client) Destroy(ctx context.Context, version string) (shred.Version, error) {
	if !versionPattern.MatchString(version) {
		return shred.Version{}, &memd.InvalidError{Field: "KMS key version", Problem: "must be the full name of a version"}
	}
	var destroyed shred.Version
	err := c.do(ctx, "DestroyCryptoKeyVersion", func(ctx context.Context) error {
		v, err := c.api.DestroyCryptoKeyVersion(ctx, &kmspb.DestroyCryptoKeyVersionRequest{Name: version})
		if err != nil {
			return err
		}
		if v.GetName() != version {
			return fmt.Errorf("%w: destroyed another version than was asked for", memd.ErrCorrupt)
		}
		destroyed = fromProto(v)
		return nil
	})
	if err == nil {
		return destroyed, nil
	}
	// The service refuses to schedule twice. Whether this refusal was that one
	// is asked of the version, not read out of the refusal.
	if !refusedForState(err) {
		return shred.Version{}, err
	}
	v, getErr := c.Get(ctx, version)
	switch {
	case getErr != nil:
		return shred.Version{}, errors.Join(err, getErr)
	case v.State.Doomed():
		return v, nil
	default:
		// Not doomed, so not shredded, whatever the refusal said. A policy that
		// wants versions disabled before they are destroyed ends here.
		return shred.Version{}, fmt.Errorf("KMS DestroyCryptoKeyVersion: %w: refused for a version that is %v", memd.ErrKeyUnavailable, v.State)
	}
}

// Restore makes a version that is scheduled for destruction, or disabled, usable
// again, and returns it as it is then. Safe to repeat: one that is enabled stays
// so. memd.ErrShredded: it is destroyed for good. It is no part of shred.KMS,
// because none of memd's processes may do it; it implements shred.Restorer.
func (c *Client) Restore(ctx context.Context, version string) (shred.Version, error) {
	if !versionPattern.MatchString(version) {
		return shred.Version{}, &memd.InvalidError{Field: "KMS key version", Problem: "must be the full name of a version"}
	}
	v, err := c.Get(ctx, version)
	if err == nil && v.State == shred.VersionDestroyScheduled {
		err = c.do(ctx, "RestoreCryptoKeyVersion", func(ctx context.Context) error {
			_, err := c.api.RestoreCryptoKeyVersion(ctx, &kmspb.RestoreCryptoKeyVersionRequest{Name: version})
			return err
		})
		if refusedForState(err) {
			err = nil // Somebody was quicker; what it is now is asked below.
		}
	}
	if err == nil && v.State != shred.VersionEnabled {
		err = c.do(ctx, "UpdateCryptoKeyVersion", func(ctx context.Context) error {
			_, err := c.api.UpdateCryptoKeyVersion(ctx, &kmspb.UpdateCryptoKeyVersionRequest{
				CryptoKeyVersion: &kmspb.CryptoKeyVersion{Name: version, State: kmspb.CryptoKeyVersion_ENABLED},
				UpdateMask:       &fieldmaskpb.FieldMask{Paths: []string{"state"}},
			})
			return err
		})
	}
	if err != nil {
		return shred.Version{}, err
	}
	return c.Get(ctx, version)
}

func fromProto(v *kmspb.CryptoKeyVersion) shred.Version {
	out := shred.Version{Name: v.GetName(), CreatedAt: moment(v.GetCreateTime())}
	switch v.GetState() {
	case kmspb.CryptoKeyVersion_PENDING_GENERATION:
		out.State = shred.VersionPending
	case kmspb.CryptoKeyVersion_ENABLED:
		out.State = shred.VersionEnabled
	case kmspb.CryptoKeyVersion_DISABLED:
		out.State = shred.VersionDisabled
	case kmspb.CryptoKeyVersion_DESTROY_SCHEDULED:
		out.State, out.DestroyAt = shred.VersionDestroyScheduled, moment(v.GetDestroyTime())
	case kmspb.CryptoKeyVersion_DESTROYED:
		out.State, out.DestroyedAt = shred.VersionDestroyed, moment(v.GetDestroyEventTime())
	}
	return out
}

func moment(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// ordinal is the number at the end of a version's name, or 0.
func ordinal(name string) int64 {
	n, err := strconv.ParseInt(name[strings.LastIndexByte(name, '/')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
