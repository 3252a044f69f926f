package kmsemu

import (
	"crypto/rand"
	"time"
)

// settle brings every key up to now: versions whose delay has passed lose their
// material, and keys whose rotation is due get a version. It runs before every
// call and once a minute, so that a version is destroyed in the file even when
// nobody asks. The caller holds the server's lock.
func (s *Server) settle() error {
	now := s.now()
	changed := make(map[string]*key)
	for name, k := range s.store.keys {
		if next := k.settled(now); next != nil {
			changed[name] = next
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return s.store.putKeys(changed)
}

// settled returns k as it is at now, or nil when nothing has changed.
func (k *key) settled(now time.Time) *key {
	var next *key
	for i, v := range k.Versions {
		if v.State != destroyScheduled || now.Before(v.DestroyAt) {
			continue
		}
		if next == nil {
			next = k.clone()
		}
		next.Versions[i] = version{State: destroyed, Tag: v.Tag, CreatedAt: v.CreatedAt, DestroyedAt: v.DestroyAt}
	}
	if k.RotationPeriod > 0 && !now.Before(k.NextRotation) {
		if next == nil {
			next = k.clone()
		}
		next.addVersion(now, enabled)
		next.Primary = len(next.Versions)
		// One version however many periods were slept through.
		for !now.Before(next.NextRotation) {
			next.NextRotation = next.NextRotation.Add(next.RotationPeriod)
		}
	}
	return next
}

func (k *key) addVersion(now time.Time, st state) {
	v := version{State: st, Tag: make([]byte, tagSize), Material: make([]byte, 32), CreatedAt: now}
	// crypto/rand never fails: it ends the process instead.
	rand.Read(v.Tag)
	rand.Read(v.Material)
	k.Versions = append(k.Versions, v)
}

// now is the clock's time as the file keeps it.
func (s *Server) now() time.Time { return s.cfg.Clock.Now().UTC().Truncate(time.Microsecond) }
