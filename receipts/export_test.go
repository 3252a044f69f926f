package receipts

import (
	"bytes"
	"time"

	"github.com/google/uuid"
	"github.com/tink-crypto/tink-go/v2/keyset"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"
	"github.com/tink-crypto/tink-go/v2/signature"
	"google.golang.org/protobuf/proto"

	"forgettable.dev/memd"
)

// Marshal is what writes canonical JSON.
var Marshal = marshal

// Words returns every word of the vocabulary.
func Words() (all []string) {
	for _, w := range checkNames {
		all = append(all, string(w))
	}
	for _, w := range storeNames {
		all = append(all, string(w))
	}
	for _, w := range reasons {
		all = append(all, string(w))
	}
	return all
}

// TestKey is a signing key without a KMS.
type TestKey struct {
	signer *Signer
	set    *tinkpb.Keyset
}

// NewTestKey makes one.
func NewTestKey(installation uuid.UUID) TestKey {
	handle, err := keyset.NewHandle(signature.ED25519KeyWithoutPrefixTemplate())
	if err != nil {
		panic(err)
	}
	public, err := handle.Public()
	if err != nil {
		panic(err)
	}
	var b bytes.Buffer
	if err := public.WriteWithNoSecrets(keyset.NewBinaryWriter(&b)); err != nil {
		panic(err)
	}
	k := TestKey{signer: &Signer{installation: installation}, set: new(tinkpb.Keyset)}
	if err := proto.Unmarshal(b.Bytes(), k.set); err != nil {
		panic(err)
	}
	if k.signer.public, err = (keyRecord{Public: b.Bytes()}).publicKey(); err != nil {
		panic(err)
	}
	if k.signer.private, err = signature.NewSigner(handle); err != nil {
		panic(err)
	}
	return k
}

// KeysOf joins the public halves, as an installation's rotations do.
func KeysOf(all ...TestKey) *Keys {
	var sets []*tinkpb.Keyset
	for _, k := range all {
		sets = append(sets, k.set)
	}
	keys, err := mergeKeys(sets)
	if err != nil {
		panic(err)
	}
	return keys
}

// TestLog is a log in memory.
type TestLog struct {
	Tenant memd.TenantNo
	h      head
	issued map[uuid.UUID]map[Stage]Bundle
}

// NewTestLog returns an empty one.
func NewTestLog(tenant memd.TenantNo) *TestLog {
	return &TestLog{Tenant: tenant, h: head{line: newBorder()}, issued: map[uuid.UUID]map[Stage]Bundle{}}
}

// Append signs a receipt as the log's next entry.
func (l *TestLog) Append(key TestKey, r Receipt, at time.Time) (Bundle, error) {
	i := &Issuer{Signer: key.signer}
	r.Times.Issued = at
	l.h.issued = l.issued[r.RequestID]
	b, err := i.build(l.Tenant, l.h, r)
	if err != nil {
		return Bundle{}, err
	}
	if l.h.last, err = b.Entry.Leaf(); err != nil {
		return Bundle{}, err
	}
	if l.issued[r.RequestID] == nil {
		l.issued[r.RequestID] = map[Stage]Bundle{}
	}
	l.issued[r.RequestID][r.Stage] = b
	return b, nil
}

// SignAgain replaces the signature of an entry whose fields were changed, as
// somebody with the key could.
func SignAgain(key TestKey, b Bundle) (Bundle, error) {
	entry, err := b.Entry.encode()
	if err != nil {
		return Bundle{}, err
	}
	b.Signature, err = key.signer.sign(entry)
	return b, err
}
