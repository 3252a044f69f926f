package receipts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/gowebpki/jcs"

	"forgettable.dev/memd"
	"forgettable.dev/memd/receipts"
)

var update = flag.Bool("update", false, "write the golden files")

var (
	installation = uuid.MustParse("5f0c9a3e-1111-4222-8333-444455556666")
	noon         = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	kmsVersion   = fmt.Sprintf("projects/acme-eu/locations/europe-west3/keyRings/memd/cryptoKeys/memd-%s-7/cryptoKeyVersions/3", installation)
)

func id(n byte) uuid.UUID {
	u := uuid.MustParse("00000000-0000-4000-8000-000000000000")
	u[15] = n
	return u
}

// provisional returns a receipt with something in every field.
func provisional(request uuid.UUID) receipts.Receipt {
	return receipts.Receipt{
		Kind: receipts.User, Stage: receipts.Provisional, Tenant: "pharmacy", RequestID: request,
		Commitment: receipts.Commit(receipts.Salt{1, 2, 3}, "pharmacy", "assistant", "user-17", ""),
		Fallen:     1,
		Times: receipts.Times{
			Accepted: noon, Fenced: noon.Add(time.Millisecond), Erased: noon.Add(time.Second), Issued: noon.Add(2 * time.Second),
		},
		Approvals: []receipts.Approval{{At: noon, Principal: id(9)}},
		Checks: []receipts.Check{
			{Name: "rows_by_owner", Result: receipts.Pass, ControlBefore: 37, DurationMicros: 1200},
			{Name: "residue_heap", Result: receipts.CheckNotRun, Reason: "no_superuser"},
			{Name: "canary_search", Result: receipts.Review, Reason: "shared_hits", ControlBefore: 4, Count: 1},
		},
		Holds: []receipts.Hold{{ID: id(8), PlacedAt: noon, ReleasedAt: noon.Add(time.Hour)}},
		Key: &receipts.Key{
			Version: kmsVersion, State: receipts.DestroyScheduled,
			UnreadableAt: noon.Add(time.Second), DestroyedAt: noon.Add(24 * time.Hour),
		},
		Purges: []receipts.Purge{
			{Target: id(5), Class: receipts.BeforeSessions, Result: receipts.Acknowledged, Code: "ok", Required: true, AcknowledgedAt: noon.Add(time.Second), Before: new(int64(3)), Attempts: 1},
			{Target: id(4), Class: receipts.AfterMemory, Result: receipts.PurgeFailed, Code: "unreachable", Required: true, Attempts: 7},
			{Target: id(6), Class: receipts.WithSessions, Result: receipts.PurgeNotRun, Reason: "on_hold", ResidualUntil: noon.Add(time.Hour)},
		},
		Residuals: []receipts.Residual{
			{Kind: receipts.ResidualModel, Provider: receipts.ProviderOther, RetentionDays: 30},
			{Kind: receipts.ResidualEmbedder, Provider: receipts.ProviderOpenAI, RetentionDays: -1, Count: 37},
			{Kind: receipts.ResidualExport, Provider: receipts.ProviderMemd, Until: noon.Add(time.Hour), Count: 1},
		},
		Stores: []receipts.Store{{Name: "memories", Before: 37}, {Name: "artifacts", Before: 8}, {Name: "sessions", Before: 4}},
		Sweep:  receipts.Sweep{State: receipts.SweepPlanned, PlannedAt: noon.Add(time.Hour)},
		Tree: &receipts.Trees{
			Before: receipts.Tree{Digest: receipts.Digest{1}, Epoch: 4}, After: receipts.Tree{Digest: receipts.Digest{2}, Epoch: 5},
		},
	}
}

func final(request uuid.UUID) receipts.Receipt {
	r := provisional(request)
	r.Stage = receipts.Final
	r.Sweep.State, r.Sweep.RowsFound = receipts.SweepDone, 2
	r.Times.Swept = noon.Add(time.Hour)
	r.Key.State = receipts.Destroyed
	r.Prior = &receipts.Digest{7}
	return r
}

func encode(t *testing.T, r receipts.Receipt) []byte {
	t.Helper()
	data, err := receipts.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestEncode_Golden(t *testing.T) {
	for name, r := range map[string]receipts.Receipt{"provisional": provisional(id(1)), "final": final(id(1))} {
		path := filepath.Join("testdata", name+".json")
		got := encode(t, r)
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s (-want +got):\n%s", name, cmp.Diff(string(want), string(got)))
		}
	}
}

// Canonical by construction is proved by a library that is not ours.
func TestEncode_IsRFC8785(t *testing.T) {
	for _, r := range []receipts.Receipt{provisional(id(1)), final(id(2))} {
		got := encode(t, r)
		want, err := jcs.Transform(got)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("not canonical:\n%s\n%s", got, want)
		}
	}
}

// Whoever adds a field finds its place here.
func TestEncode_FieldsAreInOrder(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] || typ == reflect.TypeFor[time.Time]() {
			return
		}
		seen[typ] = true
		var names []string
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			names = append(names, name)
			walk(typ.Field(i).Type)
		}
		if !slices.IsSorted(names) || slices.Contains(names, "") {
			t.Errorf("%s has its fields as %v", typ, names)
		}
	}
	walk(reflect.TypeFor[receipts.Bundle]())
	if len(seen) < 12 {
		t.Errorf("only %d structs were seen", len(seen))
	}
}

// random returns a valid receipt from a seed.
func random(r *rand.Rand) receipts.Receipt {
	out := provisional(uuid.UUID{byte(r.Uint32()), 1})
	if r.IntN(2) == 0 {
		out = final(uuid.UUID{byte(r.Uint32()), 1})
	}
	out.Fallen = r.Int64N(1 << 53)
	out.Times.Fenced = noon.Add(time.Duration(r.Int64N(int64(time.Hour)))).In(time.FixedZone("", 3600*r.IntN(10)))
	if r.IntN(2) == 0 {
		out.Key, out.NotRun = nil, []receipts.NotRun{{What: string(receipts.OmittedRotation), Reason: "never_seen"}}
	}
	if r.IntN(2) == 0 {
		out.Tree, out.NotRun = nil, []receipts.NotRun{{What: string(receipts.OmittedRotation), Reason: "never_seen"}}
	}
	if r.IntN(3) == 0 {
		out.Checks, out.Purges, out.Holds, out.Approvals = nil, nil, nil, nil
	}
	r.Shuffle(len(out.Stores), func(i, j int) { out.Stores[i], out.Stores[j] = out.Stores[j], out.Stores[i] })
	r.Shuffle(len(out.Checks), func(i, j int) { out.Checks[i], out.Checks[j] = out.Checks[j], out.Checks[i] })
	for i := range out.Stores {
		out.Stores[i].Before = r.Int64N(1 << 53)
	}
	return out
}

func TestParse_OfEncodeIsTheSame(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range 500 {
		in := random(rnd)
		want, err := receipts.New(in)
		if err != nil {
			t.Fatal(err)
		}
		data := encode(t, in)
		if again := encode(t, in); !bytes.Equal(data, again) {
			t.Fatal("encoding twice gave two results")
		}
		got, err := receipts.Parse(data)
		if err != nil {
			t.Fatalf("%v\n%s", err, data)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-in +out):\n%s", diff)
		}
		if canon, err := jcs.Transform(data); err != nil || !bytes.Equal(canon, data) {
			t.Fatalf("not RFC 8785: %v", err)
		}
	}
}

func TestParse_RefusesOtherSpellings(t *testing.T) {
	data := string(encode(t, provisional(id(1))))
	for name, changed := range map[string]string{
		"unknown field":      strings.Replace(data, `{"approvals"`, `{"a":1,"approvals"`, 1),
		"repeated field":     strings.Replace(data, `"fallen":1`, `"fallen":1,"fallen":1`, 1),
		"another case":       strings.Replace(data, `"fallen"`, `"Fallen"`, 1),
		"white space":        strings.Replace(data, `"fallen":1`, `"fallen": 1`, 1),
		"trailing space":     data + " ",
		"trailing value":     data + "{}",
		"another order":      strings.Replace(data, `"fallen":1,"format":"memd-receipt/v1"`, `"format":"memd-receipt/v1","fallen":1`, 1),
		"exponent":           strings.Replace(data, `"fallen":1`, `"fallen":1e0`, 1),
		"escaped letter":     strings.Replace(data, `"pharmacy"`, `"ph\u0061rmacy"`, 1),
		"upper-case digest":  strings.Replace(data, `"digest":"01`, `"digest":"0A`, 1),
		"null list":          strings.Replace(data, `"holds":[`, `"holds":null,"x":[`, 1),
		"time zone":          strings.Replace(data, `"accepted":"2026-05-04T12:00:00Z"`, `"accepted":"2026-05-04T12:00:00+00:00"`, 1),
		"another format":     strings.Replace(data, receipts.Format, "memd-receipt/v2", 1),
		"hidden not-run":     strings.Replace(data, `,{"reason":"no_superuser","what":"residue_heap"}`, ``, 1),
		"purged another day": strings.Replace(data, `"purged_at":"2026-06-19`, `"purged_at":"2026-06-20`, 1),
		"nothing":            "",
	} {
		if changed == data {
			t.Errorf("%s: nothing was changed", name)
		}
		if _, err := receipts.Parse([]byte(changed)); !errors.Is(err, memd.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := receipts.Parse([]byte(data)); err != nil {
		t.Error(err)
	}
}

func TestNew_Refuses(t *testing.T) {
	for _, c := range []struct {
		name, field string
		change      func(*receipts.Receipt)
	}{
		{"no request", "request_id", func(r *receipts.Receipt) { r.RequestID = uuid.Nil }},
		{"no commitment", "commitment", func(r *receipts.Receipt) { r.Commitment = receipts.Digest{} }},
		{"vacuous pass", "checks[2].control_before", func(r *receipts.Receipt) { r.Checks[0].ControlBefore = 0 }},
		{"pass with a reason", "checks[2].reason", func(r *receipts.Receipt) { r.Checks[0].Reason = "found" }},
		{"fail without a reason", "checks[2].reason", func(r *receipts.Receipt) { r.Checks[0].Result = receipts.Fail }},
		{"check twice", "checks[1].name", func(r *receipts.Receipt) { r.Checks[0].Name = "canary_search" }},
		{"negative count", "stores[0].after", func(r *receipts.Receipt) { r.Stores[1].After = -1 }},
		{"number that JSON loses", "fallen", func(r *receipts.Receipt) { r.Fallen = 1 << 53 }},
		{"no key and no word of it", "not_run", func(r *receipts.Receipt) { r.Key = nil }},
		{"no tree and no word of it", "not_run", func(r *receipts.Receipt) { r.Tree = nil }},
		{"tree that did not move", "tree.after.epoch", func(r *receipts.Receipt) { r.Tree.After.Epoch = 4 }},
		{"destroyed before unreadable", "key.destroyed_at", func(r *receipts.Receipt) { r.Key.DestroyedAt = noon }},
		{"acknowledged at no time", "purges[1].acknowledged_at", func(r *receipts.Receipt) { r.Purges[0].AcknowledgedAt = time.Time{} }},
		{"failed and acknowledged", "purges[0].acknowledged_at", func(r *receipts.Receipt) { r.Purges[1].AcknowledgedAt = noon }},
		{"failed with a word of success", "purges[0].code", func(r *receipts.Receipt) { r.Purges[1].Code = "ok" }},
		{"acknowledged with a word of failure", "purges[1].code", func(r *receipts.Receipt) { r.Purges[0].Code = "timeout" }},
		{"provisional and swept", "stage", func(r *receipts.Receipt) { r.Times.Swept = noon }},
		{"final without sweep", "sweep.state", func(r *receipts.Receipt) { r.Stage, r.Times.Swept, r.Prior = receipts.Final, noon, &receipts.Digest{1} }},
		{"final without prior", "prior", func(r *receipts.Receipt) { *r = final(id(1)); r.Prior = nil }},
		{"no time of acceptance", "times.accepted", func(r *receipts.Receipt) { r.Times.Accepted = time.Time{} }},
	} {
		r := provisional(id(1))
		c.change(&r)
		_, err := receipts.New(r)
		var invalid *memd.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != c.field {
			t.Errorf("%s: %v, want one about %s", c.name, err, c.field)
		}
	}
}

// failures.md: a receipt that leaks what was erased. What a user says or is
// called fits no string of a receipt, and no error repeats it.
func TestNew_TakesNoCanaryAnywhere(t *testing.T) {
	canaries := []string{
		"kanarienvogel", "maria.gomez@example.org", "Zolpidem 10 mg since March", "user_17", "+49 30 1234567", "maria", "pass kanarienvogel", "memories\nkanarienvogel",
	}
	strung := 0
	for _, canary := range canaries {
		for path, at := range everyString(final(id(1))) {
			r := final(id(1))
			field := at(reflect.ValueOf(&r).Elem())
			field.SetString(canary)
			strung++
			data, err := receipts.Encode(r)
			switch {
			// Format is memd's own to set, and a tenant may be called maria: it is
			// the tenant's name, not a person's.
			case path == "Format" && err == nil && !bytes.Contains(data, []byte(canary)):
			case path == "Tenant" && tenantLike(canary):
			case err == nil:
				t.Errorf("%s took %q", path, canary)
			case strings.Contains(err.Error(), canary):
				t.Errorf("%s: the error repeats %q: %v", path, canary, err)
			}
		}
	}
	if strung < 18*len(canaries) {
		t.Errorf("only %d strings were tried", strung)
	}
}

func tenantLike(s string) bool { return s == "kanarienvogel" || s == "maria" }

// everyString finds each string of a receipt, by its path, the key's and the
// lists' items included.
func everyString(r receipts.Receipt) map[string]func(reflect.Value) reflect.Value {
	if c, err := receipts.New(r); err == nil {
		r.NotRun = c.NotRun
	}
	found := map[string]func(reflect.Value) reflect.Value{}
	var walk func(path string, v reflect.Value, at func(reflect.Value) reflect.Value)
	walk = func(path string, v reflect.Value, at func(reflect.Value) reflect.Value) {
		switch v.Kind() {
		case reflect.String:
			found[path] = at
		case reflect.Pointer:
			if !v.IsNil() {
				walk(path, v.Elem(), func(r reflect.Value) reflect.Value { return at(r).Elem() })
			}
		case reflect.Slice:
			if v.Len() > 0 && v.Type().Elem().Kind() == reflect.Struct && path != "NotRun" {
				walk(path+"[0]", v.Index(0), func(r reflect.Value) reflect.Value { return at(r).Index(0) })
			}
			if path == "NotRun" {
				for name, set := range map[string]int{"Reason": 0, "What": 1} {
					found["NotRun."+name] = func(r reflect.Value) reflect.Value {
						list := at(r)
						list.Set(reflect.ValueOf([]receipts.NotRun{{Reason: "found", What: "purge_target"}}))
						return list.Index(0).Field(set)
					}
				}
			}
		case reflect.Struct:
			if v.Type() == reflect.TypeFor[time.Time]() {
				return
			}
			for i := range v.NumField() {
				walk(strings.TrimPrefix(path+"."+v.Type().Field(i).Name, "."), v.Field(i), func(r reflect.Value) reflect.Value { return at(r).Field(i) })
			}
		}
	}
	walk("", reflect.ValueOf(r), func(v reflect.Value) reflect.Value { return v })
	return found
}

// Words are lower case and technical, and each is there once in its set.
func TestVocabulary_IsPlain(t *testing.T) {
	for _, w := range receipts.Words() {
		if strings.Trim(w, "abcdefghijklmnopqrstuvwxyz_") != "" || w == "" {
			t.Errorf("word %q", w)
		}
	}
	if !receipts.KnownCheck("rows_by_owner") || receipts.KnownCheck("maria") || !receipts.KnownStore("memories") || receipts.KnownStore("") ||
		!receipts.KnownReason("timeout") || receipts.KnownReason("because") {
		t.Error("the vocabulary does not know its own words, or knows others")
	}
}

func TestReceipt_Complete(t *testing.T) {
	r := final(id(1))
	if r.Complete() {
		t.Error("complete with a purge target that failed")
	}
	r.Purges[1].Required = false
	if !r.Complete() {
		t.Error("not complete with everything done")
	}
	r.Checks[0].Result = receipts.Fail
	if r.Complete() {
		t.Error("complete with a check that failed")
	}
	p := provisional(id(1))
	p.Purges = nil
	if p.Complete() {
		t.Error("complete before the sweep")
	}
}

func TestCommit_OpensWithTheSaltAlone(t *testing.T) {
	salt, err := receipts.NewSalt()
	if err != nil {
		t.Fatal(err)
	}
	r := provisional(id(1))
	r.Commitment = receipts.Commit(salt, "pharmacy", "assistant", "user-17", "")
	if !r.Proves(salt, "assistant", "user-17", "") {
		t.Error("the salt does not prove whom it is about")
	}
	other := salt
	other[0] ^= 1
	for _, c := range []struct {
		salt               receipts.Salt
		app, user, session string
	}{
		{other, "assistant", "user-17", ""}, {salt, "assistant", "user-18", ""}, {salt, "assistantuser", "-17", ""},
		{salt, "assistant", "user-17", "s"}, {salt, "", "assistantuser-17", ""}, {salt, "assistant", "", "user-17"},
	} {
		if r.Proves(c.salt, c.app, c.user, c.session) {
			t.Errorf("proves %+v too", c)
		}
	}
	back, err := receipts.ParseSalt(salt.Reveal())
	if err != nil || back != salt {
		t.Errorf("salt came back as another: %v", err)
	}
	for _, f := range []string{"%v", "%s", "%x", "%+v", "%#v", "%d"} {
		if s := fmt.Sprintf(f, salt); s != "salt" {
			t.Errorf("%s prints the salt: %s", f, s)
		}
	}
	if _, err := receipts.ParseSalt("secret-salt"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a wrong salt: %v", err)
	}
	if text, err := json.Marshal(map[string]any{"r": r}); err != nil || bytes.Contains(text, []byte(salt.Reveal())) {
		t.Errorf("the salt is in the receipt: %v", err)
	}
}

// New leaves its argument alone, and its own result too.
func TestNew_ChangesNothingOfTheCaller(t *testing.T) {
	in, same := provisional(id(1)), provisional(id(1))
	once, err := receipts.New(in)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(same, in); diff != "" {
		t.Errorf("the argument was changed (-before +after):\n%s", diff)
	}
	twice, err := receipts.New(once)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(once, twice, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("New of New differs:\n%s", diff)
	}
}
