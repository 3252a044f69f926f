package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
)

// keyTree measures the tree alone: 10,000 of 1,000,000 subjects erased.
func keyTree(ctx context.Context, l *lab) ([]Figure, error) {
	const subjects, erased = 1_000_000, 10_000
	tree, err := shred.NewTree(1, rand.Reader)
	if err != nil {
		return nil, err
	}
	paths := make([]shred.Path, 0, erased)
	for _, n := range l.rng.Perm(subjects)[:erased] {
		no, err := memd.NewNumber(1, int64(n)+1)
		if err != nil {
			return nil, err
		}
		paths = append(paths, shred.SubjectPath(no))
	}
	if tree, err = tree.Next(paths); err != nil {
		return nil, err
	}
	derive, err := deriveTime()
	if err != nil {
		return nil, err
	}
	size, took, err := l.sealTree(ctx, tree)
	if err != nil {
		return nil, err
	}
	return []Figure{
		bounded("derive a key of 40 bits of path, uncached", "µs", derive, 15),
		bounded("key tree, 10,000 of 1,000,000 users erased", "MB", size, 3),
		bounded("seal that tree and write it to the ledger", "ms", took, 100),
	}, nil
}

func deriveTime() (float64, error) {
	const derivations = 20_000
	tree, err := shred.NewTree(1, rand.Reader)
	if err != nil {
		return 0, err
	}
	var runs []float64
	for range 3 {
		began := time.Now()
		for i := range derivations {
			no, err := memd.NewNumber(1, int64(100_000+i)) // 1 + 1 + 33 + 1 + 2 + … bits: 38 to 40
			if err != nil {
				return 0, err
			}
			if _, err := tree.Derive(shred.SessionPath(no, memd.ClassMemory, memd.OwnScope)); err != nil {
				return 0, err
			}
		}
		runs = append(runs, float64(time.Since(began).Microseconds())/derivations)
	}
	return median(runs), nil
}

func (l *lab) sealTree(ctx context.Context, tree *shred.Tree) (megabytes, ms float64, err error) {
	kms, err := gcpkms.Open(ctx, gcpkms.Config{URL: "emulator:" + l.d.KMSAddress, Token: l.d.KMS.Tokens()[kmsemu.Worker]})
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		if e := kms.Close(); err == nil {
			err = e
		}
	}()
	_, version, err := kms.CreateKey(ctx, "bench-key-tree", 24*time.Hour)
	if err != nil {
		return 0, 0, err
	}
	folder, err := ledger.OpenFolder(l.d.Ledger)
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		if e := folder.Close(); err == nil {
			err = e
		}
	}()
	var runs []float64
	for i := range l.c.Runs {
		began := time.Now()
		sealed, err := shred.SealTree(ctx, kms, version, tree)
		if err != nil {
			return 0, 0, err
		}
		if err := folder.Put(ctx, fmt.Sprintf("bench/%d", i), sealed); err != nil {
			return 0, 0, err
		}
		runs = append(runs, float64(time.Since(began))/1e6)
		megabytes = float64(len(sealed)) / 1e6
	}
	return megabytes, median(runs), nil
}
