package receipts_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gowebpki/jcs"
	"github.com/transparency-dev/merkle/rfc6962"

	"forgettable.dev/memd"
	"forgettable.dev/memd/receipts"
)

// grow appends n receipts: for each request a provisional and then a final one.
func grow(t testing.TB, log *receipts.TestLog, key receipts.TestKey, n int) []receipts.Bundle {
	t.Helper()
	var all []receipts.Bundle
	for i := range n {
		r := provisional(id(byte(1 + i/2)))
		if i%2 == 1 {
			r = final(id(byte(1 + i/2)))
		}
		b, err := log.Append(key, r, noon.Add(time.Duration(i)*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

func data(t testing.TB, b receipts.Bundle) []byte {
	t.Helper()
	out, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// verify is what a person with a file does.
func verify(file []byte, keys *receipts.Keys) error {
	b, err := receipts.ParseBundle(file)
	if err != nil {
		return err
	}
	_, err = b.Verify(keys)
	return err
}

func TestBundle_VerifiesWithThePublicKeyAlone(t *testing.T) {
	key := receipts.NewTestKey(installation)
	public, err := receipts.KeysOf(key).JSON()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := receipts.ParseKeys(public)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range grow(t, receipts.NewTestLog(7), key, 20) {
		file := data(t, b)
		if err := verify(file, keys); err != nil {
			t.Fatalf("receipt %d: %v", b.Entry.Index, err)
		}
		if canon, err := jcs.Transform(file); err != nil || !bytes.Equal(canon, file) {
			t.Errorf("bundle is not RFC 8785: %v", err)
		}
		again, err := receipts.ParseBundle(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(file, data(t, again)); diff != "" {
			t.Error(diff)
		}
	}
}

// Every byte counts: each is changed in three ways, and dropped.
func TestBundle_RefusesEveryChangedByte(t *testing.T) {
	key := receipts.NewTestKey(installation)
	keys := receipts.KeysOf(key)
	bundles := grow(t, receipts.NewTestLog(7), key, 6)
	file := data(t, bundles[5])
	if err := verify(file, keys); err != nil {
		t.Fatal(err)
	}
	tried := 0
	for i := range file {
		for _, mask := range []byte{0x01, 0x20, 0x80} { // another letter, another case, no ASCII
			changed := slices.Clone(file)
			changed[i] ^= mask
			tried++
			if err := verify(changed, keys); err == nil {
				t.Fatalf("byte %d: %q became %q and still verifies", i, near(file, i), near(changed, i))
			} else if !errors.Is(err, memd.ErrCorrupt) {
				t.Fatalf("byte %d: %v", i, err)
			}
		}
		if err := verify(slices.Delete(slices.Clone(file), i, i+1), keys); err == nil {
			t.Fatalf("without byte %d it still verifies: %q", i, near(file, i))
		}
	}
	t.Logf("%d changes of %d bytes refused", tried+len(file), len(file))
}

func near(b []byte, i int) string { return string(b[max(0, i-12):min(len(b), i+12)]) }

// A signed note's base64 has bits that nobody reads, and room for more
// signatures.
func TestBundle_RefusesMalleableCheckpoint(t *testing.T) {
	key := receipts.NewTestKey(installation)
	keys := receipts.KeysOf(key)
	b := grow(t, receipts.NewTestLog(7), key, 1)[0]
	at := strings.LastIndexByte(b.Checkpoint, '=') - 1
	alphabet := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	c := strings.IndexByte(alphabet, b.Checkpoint[at])
	spare := b
	spare.Checkpoint = b.Checkpoint[:at] + string(alphabet[c^1]) + b.Checkpoint[at+1:]
	signature := strings.TrimSpace(spare.Checkpoint[strings.LastIndexByte(spare.Checkpoint, ' ')+1:])
	before, err := base64.StdEncoding.DecodeString(signature)
	if err != nil || len(before) != 68 {
		t.Fatalf("the changed bit is no spare one: %v", err)
	}
	more := b
	more.Checkpoint = b.Checkpoint + "— somebody " + base64.StdEncoding.EncodeToString(make([]byte, 68)) + "\n"
	for name, b := range map[string]receipts.Bundle{"spare bits": spare, "another signature": more} {
		if _, err := b.Verify(keys); !errors.Is(err, memd.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBundle_RefusesWrongKey(t *testing.T) {
	key, other := receipts.NewTestKey(installation), receipts.NewTestKey(installation)
	b := grow(t, receipts.NewTestLog(7), key, 1)[0]
	if _, err := b.Verify(receipts.KeysOf(other)); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("another installation's key: %v", err)
	}
	// Signed by somebody else, who claims the right key.
	forged, err := receipts.SignAgain(other, b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := forged.Verify(receipts.KeysOf(key, other)); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("signed with a key of the set that it does not name: %v", err)
	}
	// A receipt that was changed and signed again with the right key is in no log.
	changed := b
	changed.Entry.Receipt.Fallen++
	if changed, err = receipts.SignAgain(key, changed); err != nil {
		t.Fatal(err)
	}
	if _, err := changed.Verify(receipts.KeysOf(key)); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("signed again after the checkpoint: %v", err)
	}
}

func TestKeys_Rotation(t *testing.T) {
	first, second := receipts.NewTestKey(installation), receipts.NewTestKey(installation)
	log := receipts.NewTestLog(7)
	old := grow(t, log, first, 2)
	b, err := log.Append(second, provisional(id(77)), noon)
	if err != nil {
		t.Fatal(err)
	}
	all := append(old, b)
	if _, err := receipts.VerifyChain(all, receipts.KeysOf(first, second)); err != nil {
		t.Errorf("a log over a rotation: %v", err)
	}
	if _, err := receipts.VerifyChain(all, receipts.KeysOf(first)); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("without the new key: %v", err)
	}
	if _, err := old[0].Verify(receipts.KeysOf(second)); !errors.Is(err, memd.ErrCorrupt) {
		t.Errorf("without the old key: %v", err)
	}
	if n := len(receipts.KeysOf(first, second).IDs()); n != 2 {
		t.Errorf("%d keys", n)
	}
}

func TestParseKeys_Refuses(t *testing.T) {
	for _, text := range []string{"", "{}", "null", `{"primaryKeyId":1,"key":[]}`, "not json, a secret"} {
		if _, err := receipts.ParseKeys([]byte(text)); !errors.Is(err, memd.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func checkpoints(t testing.TB, keys *receipts.Keys, bundles ...receipts.Bundle) (all []receipts.Checkpoint) {
	t.Helper()
	for _, b := range bundles {
		c, err := receipts.ParseCheckpoint(b.Checkpoint, keys)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

func TestVerifyChain(t *testing.T) {
	key := receipts.NewTestKey(installation)
	keys := receipts.KeysOf(key)
	log := grow(t, receipts.NewTestLog(7), key, 9)
	// The same erasures, in another order, by somebody with the key.
	rewritten := func() []receipts.Bundle {
		other := receipts.NewTestLog(7)
		var all []receipts.Bundle
		for _, i := range []int{0, 2, 1, 3, 4, 5, 6, 7, 8} {
			b, err := other.Append(key, log[i].Entry.Receipt, noon)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b)
		}
		return all
	}()
	elsewhere := grow(t, receipts.NewTestLog(8), key, 2)
	swapped := func() []receipts.Bundle {
		s := slices.Clone(log)
		s[3].Entry.Receipt, s[4].Entry.Receipt = s[4].Entry.Receipt, s[3].Entry.Receipt
		return s
	}()
	renumbered := func() []receipts.Bundle {
		s := slices.Clone(log)
		s[3].Entry.Index, s[4].Entry.Index = 4, 3
		for _, i := range []int{3, 4} {
			b, err := receipts.SignAgain(key, s[i])
			if err != nil {
				t.Fatal(err)
			}
			s[i] = b
		}
		return s
	}()
	head := checkpoints(t, keys, log[8])
	for _, c := range []struct {
		name    string
		bundles []receipts.Bundle
		old     []receipts.Checkpoint
		want    string // "" is success
	}{
		{"whole", log, nil, ""},
		{"whole, shuffled files", []receipts.Bundle{log[4], log[8], log[0], log[2], log[1], log[3], log[7], log[5], log[6]}, nil, ""},
		{"one file twice", append(slices.Clone(log), log[4]), nil, ""},
		{"whole, and every head", log, checkpoints(t, keys, log...), ""},
		{"continues an old head", log[4:], checkpoints(t, keys, log[3]), ""},
		{"continues an older head, inside", log[2:], checkpoints(t, keys, log[1], log[5], log[8]), ""},
		{"nothing", nil, nil, "no receipts"},
		{"dropped from the middle", slices.Delete(slices.Clone(log), 4, 5), nil, "receipt number 4 is missing"},
		{"dropped from the front", log[1:], nil, "before number 0 are missing"},
		{"dropped from the end", log[:8], head, "number 8 to 8 are missing"},
		{"gap after an old head", log[5:], checkpoints(t, keys, log[3]), "from number 4 to 4 are missing"},
		{"contents swapped", swapped, nil, "signature does not fit"},
		{"numbers swapped and signed again", renumbered, nil, "receipt number 3"},
		{"rewritten in another order", rewritten, checkpoints(t, keys, log[4]), "rewritten"},
		{"rewritten, joined behind the old", append(slices.Clone(log[:5]), rewritten[5:]...), nil, "receipt number 5 does not continue"},
		{"forked", append(slices.Clone(log), rewritten[4]), nil, "two different receipts number 4"},
		{"of two logs", append(slices.Clone(log), elsewhere[0]), nil, "two logs"},
		{"another log's head", log, checkpoints(t, keys, elsewhere[1]), "another log's"},
	} {
		if c.name == "dropped from the front" {
			c.want = "receipts before number 1 are missing"
		}
		chain, err := receipts.VerifyChain(c.bundles, keys, c.old...)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want == "" && (chain.Next != 9 || chain.Head.Size != 9):
			t.Errorf("%s: %+v", c.name, chain)
		case c.want != "" && (!errors.Is(err, memd.ErrCorrupt) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// A final receipt whose provisional one is another erasure's, by somebody with
// the key.
func TestVerifyChain_FinalContinuesItsOwn(t *testing.T) {
	key := receipts.NewTestKey(installation)
	log := receipts.NewTestLog(7)
	first := grow(t, log, key, 1)[0]
	r := final(id(1))
	r.Commitment = receipts.Digest{9}
	second, err := log.Append(key, r, noon)
	if err != nil {
		t.Fatal(err)
	}
	_, err = receipts.VerifyChain([]receipts.Bundle{first, second}, receipts.KeysOf(key))
	if !errors.Is(err, memd.ErrCorrupt) || !strings.Contains(err.Error(), "another erasure's") {
		t.Error(err)
	}
}

// The tree is RFC 6962's, said by the plain definition of it.
func TestBundle_RootIsRFC6962(t *testing.T) {
	key := receipts.NewTestKey(installation)
	keys := receipts.KeysOf(key)
	var leaves [][]byte
	for _, b := range grow(t, receipts.NewTestLog(7), key, 13) {
		leaf, err := b.Entry.Leaf()
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leaf[:])
		if got := checkpoints(t, keys, b)[0]; got.Root != receipts.Digest(plainRoot(leaves)) {
			t.Fatalf("root of %d entries is another", len(leaves))
		}
	}
}

func plainRoot(leaves [][]byte) []byte {
	if len(leaves) == 1 {
		return leaves[0]
	}
	split := 1
	for split*2 < len(leaves) {
		split *= 2
	}
	return rfc6962.DefaultHasher.HashChildren(plainRoot(leaves[:split]), plainRoot(leaves[split:]))
}

func FuzzParse(f *testing.F) {
	for _, r := range []receipts.Receipt{provisional(id(1)), final(id(1))} {
		seed, err := receipts.Encode(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := receipts.Parse(in)
		if err != nil {
			if !errors.Is(err, memd.ErrCorrupt) {
				t.Fatalf("refused with another error: %v", err)
			}
			return
		}
		out, err := receipts.Encode(r)
		if err != nil || !bytes.Equal(in, out) {
			t.Fatalf("parsed to what encodes differently: %v", err)
		}
	})
}

// Nobody without the key makes a bundle that verifies, out of real ones.
func FuzzParseBundle(f *testing.F) {
	key := receipts.NewTestKey(installation)
	keys := receipts.KeysOf(key)
	real := map[string]bool{}
	for _, b := range grow(f, receipts.NewTestLog(7), key, 4) {
		real[string(data(f, b))] = true
		f.Add(data(f, b))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		b, err := receipts.ParseBundle(in)
		if err != nil {
			return
		}
		if _, err := b.Verify(keys); err == nil && !real[string(in)] {
			t.Fatal("a forged bundle verifies")
		}
	})
}
