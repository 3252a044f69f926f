package bench

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/shred"
)

const (
	eventBytes    = 4 << 10
	appendSamples = 400
	warmAppends   = 20 // not counted
	readEvents    = 50
	sealRounds    = 2_000
)

// conversations measures the session store: what sealing adds to an event, how
// long an append takes, and a read of a whole conversation.
func conversations(ctx context.Context, l *lab) ([]Figure, error) {
	sealing, err := l.sealing()
	if err != nil {
		return nil, err
	}
	t, err := l.tenant(ctx, "sessions", 4)
	if err != nil {
		return nil, err
	}
	appending, err := l.appending(ctx, t)
	if err != nil {
		return nil, err
	}
	reading, err := l.reading(ctx, t)
	if err != nil {
		return nil, err
	}
	return []Figure{sealing, appending, reading}, nil
}

// sealing compares sealing and opening 4 KiB with AES-256-GCM alone, which has
// its nonce from the same source.
func (l *lab) sealing() (Figure, error) {
	plain, aad := []byte(strings.Repeat("x", eventBytes)), make([]byte, 64)
	tree, err := shred.NewTree(1, rand.Reader)
	if err != nil {
		return Figure{}, err
	}
	keys := shred.NewKeys(tree)
	no, err := memd.NewNumber(1, 100_000)
	if err != nil {
		return Figure{}, err
	}
	sealer, err := keys.Content(600, no, no)
	if err != nil {
		return Figure{}, err
	}
	key := make([]byte, 32)
	block, err := aes.NewCipher(key)
	if err != nil {
		return Figure{}, err
	}
	raw, err := cipher.NewGCM(block)
	if err != nil {
		return Figure{}, err
	}
	timed := func(one func() error) func() (float64, error) {
		return func() (float64, error) {
			xs, err := latencies(sealRounds, func(int) error { return one() })
			p50, err := medianOf(xs, err)
			return 1e3 * p50, err
		}
	}
	ours, peer, err := l.alternate(
		timed(func() error {
			sealed, err := sealer.SealFast(plain, aad)
			if err == nil {
				_, err = sealer.Open(sealed, aad)
			}
			return err
		}),
		timed(func() error {
			nonce := make([]byte, raw.NonceSize(), raw.NonceSize()+len(plain)+raw.Overhead())
			if _, err := rand.Read(nonce); err != nil {
				return err
			}
			sealed := raw.Seal(nonce, nonce, plain, aad)
			_, err := raw.Open(nil, sealed[:raw.NonceSize()], sealed[raw.NonceSize():], aad)
			return err
		}))
	return against("seal and open an event of 4 KiB, p50", "µs", ours, "AES-256-GCM", peer,
		"at most 2 times the peer", func(r float64) bool { return r <= 2 }), err
}

// appending compares an append of one event, durable, with a bare INSERT of as
// many bytes over the same kind of connection. They take turns, call by call, so
// that a busy machine and the disk's moods meet both alike.
func (l *lab) appending(ctx context.Context, t *tenant) (Figure, error) {
	_, err := l.plain.Exec(ctx, `CREATE TABLE bare_events (tenant_no bigint NOT NULL, session_no bigint NOT NULL, seq bigint NOT NULL,
		at timestamptz NOT NULL, body bytea NOT NULL, PRIMARY KEY (tenant_no, session_no, seq))`)
	if err != nil {
		return Figure{}, err
	}
	id := sessions.ID{App: "bench", UserID: l.newUser().UserID, SessionID: "s"}
	at := sessions.Tenant{No: t.No, Epoch: t.Epoch}
	s := l.d.Server.Sessions
	created, err := s.Create(ctx, at, id, nil, false)
	if err != nil {
		return Figure{}, err
	}
	seen, e := created.UpdatedAt, l.event(0) // once: neither side is charged for making up what is said
	ours := func(n int) error {
		e.ID, e.Time = fmt.Sprintf("event-%08d", n), time.Now().UTC().Truncate(time.Microsecond)
		a, err := s.Append(ctx, at, id, []sessions.Event{e}, seen, false)
		seen = a.UpdatedAt
		return err
	}
	body := make([]byte, eventBytes+sealedExtra)
	if _, err := rand.Read(body); err != nil {
		return Figure{}, err
	}
	bare := func(n int) error {
		_, err := l.plain.Exec(ctx, `INSERT INTO bare_events VALUES ($1, $2, $3, $4, $5)`, int64(1), int64(1), int64(n), time.Now(), body)
		return err
	}
	a, b, err := l.turns(warmAppends, appendSamples, ours, bare)
	if err != nil {
		return Figure{}, err
	}
	return against("append an event of 4 KiB, durable, p50", "ms", a, "bare INSERT", b,
		"at most 1.5 times the peer", func(r float64) bool { return r <= 1.5 }), nil
}

// event has 4 KiB of content, as a model writes it.
func (l *lab) event(n int) sessions.Event {
	said := strings.Repeat(text+" ", eventBytes/len(text)+1)
	return sessions.Event{
		ID: fmt.Sprintf("event-%08d", n), Author: "user", Time: time.Now().UTC().Truncate(time.Microsecond),
		Content: `{"role":"user","parts":[{"text":"` + said[:eventBytes-64] + `"}]}`,
	}
}

// reading measures reading a conversation of 50 events of 4 KiB whose keys are
// in memory: one round trip, and no call of the key service.
func (l *lab) reading(ctx context.Context, t *tenant) (Figure, error) {
	id := sessions.ID{App: "bench", UserID: l.newUser().UserID, SessionID: "s"}
	at := sessions.Tenant{No: t.No, Epoch: t.Epoch}
	s := l.d.Server.Sessions
	if _, err := s.Create(ctx, at, id, map[string]string{"k": `1`}, false); err != nil {
		return Figure{}, err
	}
	events := make([]sessions.Event, readEvents)
	for i := range events {
		events[i] = l.event(i)
	}
	if _, err := s.Append(ctx, at, id, events, time.Time{}, false); err != nil {
		return Figure{}, err
	}
	xs, err := latencies(appendSamples, func(int) error {
		_, err := s.Get(ctx, at, id, sessions.Query{Events: memd.MaxReadEvents})
		return err
	})
	p50, err := medianOf(xs, err)
	return Figure{Name: "read a session of 50 events of 4 KiB, p50", Unit: "ms", Ours: p50, Must: "no bound; at most one call of the key service", Met: true}, err
}
