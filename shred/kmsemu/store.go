package kmsemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// fileFormat is the version of the key file. Another one is refused.
const fileFormat = 1

// ErrLocked: another process, or another Server of this one, has the key file.
var ErrLocked = errors.New("KMS emulator's key file is in use by another process")

// ring is a key ring.
type ring struct {
	CreatedAt time.Time `json:"created_at"`
}

// key is one CryptoKey. A key in the store is never changed in place: a change
// makes a clone, writes it, and then puts it in.
type key struct {
	CreatedAt      time.Time     `json:"created_at"`
	DestroyDelay   time.Duration `json:"destroy_delay_ns"`
	RotationPeriod time.Duration `json:"rotation_period_ns,omitempty"`
	NextRotation   time.Time     `json:"next_rotation,omitzero"`
	// Primary is the number of the primary version, 0 for none.
	Primary int `json:"primary,omitempty"`
	// Versions are numbered from 1 in this order.
	Versions []version `json:"versions"`
}

// version is one CryptoKeyVersion.
type version struct {
	State state `json:"state"`
	// Tag names the version inside its ciphertexts.
	Tag         []byte    `json:"tag"`
	Material    []byte    `json:"material,omitempty"`
	CreatedAt   time.Time `json:"created_at"`
	DestroyAt   time.Time `json:"destroy_at,omitzero"`
	DestroyedAt time.Time `json:"destroyed_at,omitzero"`
}

// state is a version's state, spelled as Cloud KMS does.
type state string

const (
	enabled          state = "ENABLED"
	disabled         state = "DISABLED"
	destroyScheduled state = "DESTROY_SCHEDULED"
	destroyed        state = "DESTROYED"
)

func (k *key) clone() *key {
	c := *k
	c.Versions = append([]version(nil), k.Versions...)
	return &c
}

// file is the key file.
type file struct {
	Warning string          `json:"warning"`
	Format  int             `json:"format"`
	Rings   map[string]ring `json:"key_rings"`
	Keys    map[string]*key `json:"keys"`
}

const warning = "KMS EMULATOR: these keys are in clear. For development and tests only."

// store is the key file in memory. Its caller serialises access.
type store struct {
	path  string
	lock  *os.File
	rings map[string]ring
	keys  map[string]*key // by full name
}

func openStore(path string) (*store, error) {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the key file: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrLocked, path)
		}
		return nil, fmt.Errorf("locking the key file: %w", err)
	}
	s := &store{path: path, lock: lock, rings: map[string]ring{}, keys: map[string]*key{}}
	if err := s.load(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *store) load() error {
	raw, err := readPrivate(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the key file: %w", err)
	}
	defer clear(raw)
	var f file
	if err := json.Unmarshal(raw, &f); err != nil {
		// The decoder's text may quote the file, which holds keys.
		return fmt.Errorf("reading the key file: %s is damaged", s.path)
	}
	if f.Format != fileFormat {
		return fmt.Errorf("reading the key file: %s has format %d, want %d", s.path, f.Format, fileFormat)
	}
	for name, r := range f.Rings {
		s.rings[name] = r
	}
	for name, k := range f.Keys {
		s.keys[name] = k
	}
	return nil
}

// putKeys writes the file with these keys in it, and only then puts them into
// memory: what was answered is on disk, and what failed to reach the disk did
// not happen.
func (s *store) putKeys(changed map[string]*key) error {
	next := maps.Clone(s.keys)
	maps.Copy(next, changed)
	if err := s.save(s.rings, next); err != nil {
		return err
	}
	s.keys = next
	return nil
}

func (s *store) putRing(name string, r ring) error {
	next := maps.Clone(s.rings)
	next[name] = r
	if err := s.save(next, s.keys); err != nil {
		return err
	}
	s.rings = next
	return nil
}

func (s *store) save(rings map[string]ring, keys map[string]*key) error {
	raw, err := json.MarshalIndent(file{warning, fileFormat, rings, keys}, "", " ")
	if err != nil {
		return fmt.Errorf("encoding the key file: %w", err)
	}
	defer clear(raw)
	return replaceFile(s.path, append(raw, '\n'))
}

func (s *store) close() error { return s.lock.Close() }

// replaceFile replaces path atomically with a file that only its owner can
// read, and returns when it and its directory entry are durable.
func replaceFile(path string, raw []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return fmt.Errorf("replacing %s: %w", path, err)
	}
	_, err = tmp.Write(raw)
	if err == nil {
		err = tmp.Sync()
	}
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("replacing %s: %w", path, err), os.Remove(tmp.Name()))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("syncing the directory of %s: %w", path, err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("syncing the directory of %s: %w", path, err)
	}
	return nil
}
