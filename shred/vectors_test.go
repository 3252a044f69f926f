package shred_test

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

var update = flag.Bool("update", false, "rewrite testdata/vectors.json; sealed values get new nonces")

const vectorsFile = "testdata/vectors.json"

// vectors pins every derivation and encoding. A change of any of them makes
// what is stored unreadable, so it needs a new format version and a migration,
// never an -update alone.
type vectors struct {
	Seed   string            `json:"seed"` // root key ‖ index key of tenant 7
	Paths  map[string]string `json:"paths"`
	Leaves map[string]string `json:"leaves"`
	// Tree is epoch 2, after the punctures.
	Punctured  []string          `json:"punctured"`
	Tree       string            `json:"tree"`
	TreeDigest string            `json:"tree_digest"`
	Refs       map[string]string `json:"refs"`
	EventID    string            `json:"event_id"`
	Rotation   string            `json:"rotation"`
	// RowDigests pin the digest keys of rows, Sealed their sealing keys.
	RowDigests map[string]string `json:"row_digests"`
	Sealed     []sealedVector    `json:"sealed"`
	AAD        map[string]string `json:"aad"`
	// SealedTree is the tree, wrapped by the test's KMS.
	SealedTree []byte `json:"sealed_tree"`
}

type sealedVector struct {
	Key       string `json:"key"`
	Plaintext string `json:"plaintext"`
	Sealed    []byte `json:"sealed"`
}

func readVectors(t testing.TB) vectors {
	t.Helper()
	b, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func vectorTree(t testing.TB) *shred.Tree {
	t.Helper()
	seed := make([]byte, 64)
	for i := range seed {
		seed[i] = byte(i)
	}
	tree, err := shred.NewTree(7, bytes.NewReader(seed))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// vectorSealers are the keys whose outputs are pinned.
func vectorSealers(t testing.TB) map[string]*shred.Sealer {
	t.Helper()
	k := keysOf(t, vectorTree(t))
	subject, err := k.Subject(number(t, 1, 5))
	if err != nil {
		t.Fatal(err)
	}
	session, err := k.Session(number(t, 1, 5), number(t, 1, 2))
	if err != nil {
		t.Fatal(err)
	}
	job, err := k.Job(number(t, 1, 3))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*shred.Sealer{
		"row/one":     row(t, k, 683, contribution(t, 5, 2)),
		"row/two":     row(t, k, 683, contribution(t, 9, 1), contribution(t, 5, 2)),
		"subject/1.5": subject, "session/1.5/1.2": session, "job/1.3": job,
	}
}

func computeVectors(t *testing.T) vectors {
	t.Helper()
	tree := vectorTree(t)
	paths := map[string]shred.Path{
		"subject/1.1":             shred.SubjectPath(number(t, 1, 1)),
		"subject/2.100000":        shred.SubjectPath(number(t, 2, 100_000)),
		"own/1.5/content":         shred.SessionPath(number(t, 1, 5), memd.ClassContent, memd.OwnScope),
		"own/1.5/memory":          shred.SessionPath(number(t, 1, 5), memd.ClassMemory, memd.OwnScope),
		"session/1.5/1.2/memory":  shred.SessionPath(number(t, 1, 5), memd.ClassMemory, number(t, 1, 2)),
		"session/1.5/1.2/content": shred.SessionPath(number(t, 1, 5), memd.ClassContent, number(t, 1, 2)),
		"month/683/memory":        shred.MonthPath(memd.ClassMemory, 683),
		"month/1/content":         shred.MonthPath(memd.ClassContent, 1),
		"job/1.3":                 shred.JobPath(number(t, 1, 3)),
		"longest": shred.SessionPath(number(t, memd.MaxGeneration, memd.MaxCounter), memd.ClassMemory,
			number(t, memd.MaxGeneration, memd.MaxCounter)),
	}
	v := vectors{
		Paths: map[string]string{}, Leaves: map[string]string{}, Refs: map[string]string{}, RowDigests: map[string]string{}, AAD: map[string]string{},
	}
	state := marshal(t, tree)
	v.Seed = hex.EncodeToString(state[len(state)-32:]) + hex.EncodeToString(state[49:81])
	for name, p := range paths {
		v.Paths[name] = string(p)
		if !p.Leaf() {
			continue
		}
		key, err := tree.Derive(p)
		if err != nil {
			t.Fatal(err)
		}
		v.Leaves[name] = hex.EncodeToString(key[:])
	}
	punctured := []shred.Path{shred.SubjectPath(number(t, 1, 2)), paths["session/1.5/1.2/content"], paths["month/1/content"]}
	for _, p := range punctured {
		v.Punctured = append(v.Punctured, string(p))
	}
	following := next(t, tree, punctured...)
	digest := following.Digest()
	v.Tree, v.TreeDigest = base64.StdEncoding.EncodeToString(marshal(t, following)), hex.EncodeToString(digest[:])

	k := keysOf(t, vectorTree(t))
	user := k.UserRef("app", "user")
	for name, ref := range map[string]memd.Ref{
		"user app/user": user, "shared app": k.SharedRef("app"), "session s of user": k.SessionRef(user, "s"),
	} {
		v.Refs[name] = hex.EncodeToString(ref[:])
	}
	id, err := k.EventID(number(t, 1, 5), number(t, 1, 2), "event-1")
	if err != nil {
		t.Fatal(err)
	}
	v.EventID = id.String()
	seed, err := k.Rotation(number(t, 1, 5))
	if err != nil {
		t.Fatal(err)
	}
	v.Rotation = hex.EncodeToString(seed[:])
	for name, s := range vectorSealers(t) {
		d := s.Digest([]byte("colour"), []byte("red"))
		v.RowDigests[name] = hex.EncodeToString(d[:])
	}
	for name, aad := range map[string][]byte{
		"memory text":     shred.AADMemoryText(7, number(t, 1, 5), uuid.UUID{1, 2, 3}),
		"memory vector":   shred.AADMemoryVector(7, number(t, 1, 5), uuid.UUID{1, 2, 3}),
		"memory code":     shred.AADMemoryCode(7, number(t, 1, 5), uuid.UUID{1, 2, 3}),
		"memory metadata": shred.AADMemoryMetadata(7, number(t, 1, 5), uuid.UUID{1, 2, 3}),
		"user id":         shred.AADUserID(7, number(t, 1, 5)),
		"session id":      shred.AADSessionID(7, number(t, 1, 5), number(t, 1, 2)),
		"tree":            shred.AADTree(7, 2),
		"job":             shred.AADJob(7, number(t, 1, 3), "user_id"),
	} {
		v.AAD[name] = hex.EncodeToString(aad)
	}
	return v
}

var vectorTexts = []string{"", "tea", "tea and biscuits, tea and biscuits, tea and biscuits, tea and biscuits, tea and biscuits"}

func TestVectors(t *testing.T) {
	got, sealers := computeVectors(t), vectorSealers(t)
	if *update {
		for _, name := range []string{"row/one", "row/two", "subject/1.5", "session/1.5/1.2", "job/1.3"} {
			for _, text := range vectorTexts {
				sealed, err := sealers[name].Seal([]byte(text), []byte(name))
				if err != nil {
					t.Fatal(err)
				}
				got.Sealed = append(got.Sealed, sealedVector{Key: name, Plaintext: text, Sealed: sealed})
			}
		}
		got.SealedTree = sealed(t, vectorTree(t))
		b, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(vectorsFile, append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := readVectors(t)
	if len(want.Sealed) != len(sealers)*len(vectorTexts) {
		t.Errorf("file has %d sealed values", len(want.Sealed))
	}
	for _, s := range want.Sealed {
		plaintext, err := sealers[s.Key].Open(s.Sealed, []byte(s.Key))
		if err != nil || string(plaintext) != s.Plaintext {
			t.Errorf("%s does not open what it sealed: %v", s.Key, err)
		}
	}
	tree, version, err := shred.OpenTree(t.Context(), wrapper{}, testKey, want.SealedTree)
	if err != nil || version != testVersion || tree.Digest() != vectorTree(t).Digest() {
		t.Errorf("the sealed tree does not open: %v", err)
	}
	// Sealed values have random nonces: they are opened, and not compared.
	got.Sealed, got.SealedTree = want.Sealed, want.SealedTree
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a stored format changed:\n%s", diff)
	}
}

// Some of the vectors again, from the standard library and the words of the
// specification alone, so that an -update cannot bless a mistake.
func TestVectors_ByHand(t *testing.T) {
	root, index := make([]byte, 32), make([]byte, 32)
	for i := range 32 {
		root[i], index[i] = byte(i), byte(32+i)
	}
	leaf := func(path string) []byte {
		key := root
		for _, b := range path {
			h := hmac.New(sha256.New, key)
			h.Write([]byte("memd/tree/child/v1"))
			h.Write([]byte{byte(b - '0')})
			key = h.Sum(nil)
		}
		return key
	}
	part := func(s string) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...) }
	sum := func(key []byte, parts ...string) []byte {
		h := hmac.New(sha256.New, key)
		for _, p := range parts {
			h.Write(part(p))
		}
		return h.Sum(nil)
	}
	expand := func(secret []byte, info string) []byte {
		key, err := hkdf.Key(sha256.New, secret, nil, info, 32)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	// γ(1) = 1, γ(2) = 010, γ(5) = 00101, γ(683) = nine zeros and 1010101011.
	month, five, nine := "10"+"1"+"000000000"+"1010101011", "0"+"1"+"00101"+"1"+"1"+"010", "0"+"1"+"0001001"+"1"+"1"+"1"
	v := computeVectors(t)
	got := map[string]string{
		"path":    v.Paths["session/1.5/1.2/memory"],
		"month":   v.Paths["month/683/memory"],
		"leaf":    v.Leaves["session/1.5/1.2/memory"],
		"ref":     v.Refs["user app/user"],
		"shared":  v.Refs["shared app"],
		"one":     v.RowDigests["row/one"],
		"two":     v.RowDigests["row/two"],
		"session": v.RowDigests["session/1.5/1.2"],

		"rotation": v.Rotation,
	}
	own := "0" + "1" + "00101" + "1" + "1" + "1"
	event := sum(expand(leaf(five), "memd/event-id/v1"), "memd/event/v1", "event-1")[:16]
	event[6], event[8] = event[6]&0x0f|0x80, event[8]&0x3f|0x80
	got["event"] = v.EventID
	rowDigest := func(purpose string, leaves ...[]byte) string {
		key := expand(bytes.Join(leaves, nil), purpose+"/digest")
		return hex.EncodeToString(sum(key, "memd/digest/v1", "colour", "red")[:16])
	}
	want := map[string]string{
		"path":    five,
		"month":   month,
		"leaf":    hex.EncodeToString(leaf(five)),
		"ref":     hex.EncodeToString(sum(index, "memd/ref/user/v1", "app", "user")),
		"shared":  hex.EncodeToString(sum(index, "memd/ref/shared/v1", "app")),
		"event":   uuid.UUID(event).String(),
		"one":     rowDigest("memd/row/v1", leaf(month), leaf(five)),
		"two":     rowDigest("memd/row/v1", leaf(month), leaf(five), leaf(nine)),
		"session": rowDigest("memd/session/v1", leaf(five)),

		"rotation": hex.EncodeToString(expand(leaf(own), "memd/rotation/v1")),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("derived otherwise than specified:\n%s", diff)
	}
}
