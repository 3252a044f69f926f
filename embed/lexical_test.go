package embed_test

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/embed"
)

func lexical(tb testing.TB, dim int) embed.Embedder {
	tb.Helper()
	e, err := embed.Lexical(dim)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func embedOne(tb testing.TB, e embed.Embedder, text string) []float32 {
	tb.Helper()
	vs, err := e.Embed(tb.Context(), []string{text})
	if err != nil {
		tb.Fatal(err)
	}
	return vs[0]
}

func cosine(a, b []float32) float64 {
	var sum float64
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// spoken is a store of other people's sentences, among which the tests search.
var spoken = []string{
	"I live at 48 Harbour Lane, flat 3, above the bakery.",
	"My sister Zoë Castellanos is getting married in Lisbon in May.",
	"The dentist moved to 1190 West Alder Avenue last month.",
	"You can reach me at +44 20 7946 0958 after six.",
	"The plumber's invoice was $3,250 and I have paid it.",
	"Please book a table for two at Trattoria Bellavista on Friday.",
	"I am allergic to peanuts and to penicillin.",
	"My booking reference for the flight to Oslo is QX7T4M.",
	"The meeting with Dr. Okonkwo was moved to the 13th of March.",
	"Our cat is called Marmalade and she is eleven years old.",
	"I would like to change my address.",
	"What is the weather like tomorrow?",
	"Yes, that sounds good, thanks.",
	"Anything else I can do for you?",
	"私の住所は東京都港区芝公園です。",
	"Meine Tochter studiert in Göttingen Maschinenbau.",
	"Мой номер паспорта лежит в синей папке.",
	"👍",
}

func TestLexical_FindsWhatWasSaid(t *testing.T) {
	queries := []struct {
		name, query string
		want        int
	}{
		{"an address", "48 harbour lane", 0},
		{"an address in a question", "what is the address at Harbour Lane?", 0},
		{"a house number", "1190", 2},
		{"a street, misspelt", "west aldr avenue", 2},
		{"a name without its accent", "zoe castellanos", 1},
		{"a family name", "Okonkwo", 8},
		{"a telephone number written otherwise", "20-7946-0958", 3},
		{"an amount without its comma", "3250", 4},
		{"a booking code in lower case", "qx7t4m", 7},
		{"a restaurant", "which trattoria did I book?", 5},
		{"an inflected word", "allergies: peanut?", 6},
		{"a pet", "what is my cat called", 9},
		{"Japanese", "東京都港区", 14},
		{"German, upper case and without its accent", "GOTTINGEN", 15},
		{"Russian, another case ending", "номера паспортов", 16},
		{"full width digits", "４８ Harbour", 0},
		{"an emoji", "👍", 17},
	}
	for _, dim := range []int{256, 384, 1024, 4096} {
		e := lexical(t, dim)
		store, err := e.Embed(t.Context(), spoken)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range queries {
			v := embedOne(t, e, q.query)
			best := 0
			for i := range store {
				if cosine(v, store[i]) > cosine(v, store[best]) {
					best = i
				}
			}
			if best != q.want {
				t.Errorf("dimension %d: %s: found %d (%.2f), want %d (%.2f)",
					dim, q.name, best, cosine(v, store[best]), q.want, cosine(v, store[q.want]))
			}
		}
	}
}

func TestLexical_UnrelatedTextsAreFarApart(t *testing.T) {
	e := lexical(t, 512)
	for _, text := range []string{"quarterly turbine maintenance schedule", "violoncello", "99 luftballons"} {
		v := embedOne(t, e, text)
		for i, s := range spoken {
			if c := cosine(v, embedOne(t, e, s)); math.Abs(c) > 0.2 {
				t.Errorf("text %d has cosine %.2f with a sentence that shares nothing with it", i, c)
			}
		}
	}
}

func TestLexical_SpellingNotMeaning(t *testing.T) {
	e := lexical(t, 512)
	like := cosine(embedOne(t, e, "apartment"), embedOne(t, e, "apartments"))
	means := cosine(embedOne(t, e, "apartment"), embedOne(t, e, "flat"))
	if like < 0.2 || math.Abs(means) > 0.15 {
		t.Errorf("inflected form %.2f, synonym %.2f", like, means)
	}
}

func TestLexical_RepetitionIsSubLinear(t *testing.T) {
	e := lexical(t, 1024)
	once := embedOne(t, e, "marmalade harbour")
	often := embedOne(t, e, strings.Repeat("marmalade ", 50)+"harbour")
	if c := cosine(once, often); c < 0.5 {
		t.Errorf("saying a word fifty times drowns the other: cosine %.2f", c)
	}
}

func TestLexical_UnitLengthAndDimension(t *testing.T) {
	for _, dim := range []int{64, 65, 100, 384, 777, 1536, 4096} {
		e := lexical(t, dim)
		vs, err := e.Embed(t.Context(), append([]string{"a", "?!", "the", "\u200d", strings.Repeat("ab1", 80_000)}, spoken...))
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range vs {
			if len(v) != dim {
				t.Fatalf("text %d has %d components, want %d", i, len(v), dim)
			}
			if c := cosine(v, v); math.Abs(c-1) > 1e-5 {
				t.Errorf("dimension %d, text %d: length %f", dim, i, math.Sqrt(c))
			}
		}
	}
}

func TestLexical_SameFromEveryGoroutine(t *testing.T) {
	e := lexical(t, 384)
	want, err := e.Embed(t.Context(), spoken)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i, s := range spoken {
				got, err := e.Embed(context.Background(), []string{s})
				if err != nil {
					t.Error(err)
					return
				}
				if diff := cmp.Diff(want[i], got[0]); diff != "" {
					t.Errorf("text %d differs (-first +again):\n%s", i, diff)
				}
			}
		})
	}
	wg.Wait()
}

// TestLexical_Golden guards stored vectors: whoever changes these digests makes
// every vector that a tenant has stored meaningless, and must change the name.
func TestLexical_Golden(t *testing.T) {
	if got := lexical(t, 64).Name(); got != "lexical/1" {
		t.Fatalf("name is %q; give the new scheme digests of its own", got)
	}
	got := map[int]uint64{}
	for _, dim := range []int{64, 384} {
		h := fnv.New64a()
		for _, s := range spoken {
			for _, x := range embedOne(t, lexical(t, dim), s) {
				// Four digits, so that another machine's last bit is no change.
				var b [4]byte
				binary.BigEndian.PutUint32(b[:], uint32(int32(math.Round(float64(x)*1e4))))
				h.Write(b[:])
			}
		}
		got[dim] = h.Sum64()
	}
	want := map[int]uint64{64: 16158625969182362200, 384: 11153298069098192946}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("vectors changed (-want +got):\n%s", diff)
	}
}

func TestLexical_Refuses(t *testing.T) {
	for _, dim := range []int{-1, 0, 63, memd.MaxDimension + 1} {
		if _, err := embed.Lexical(dim); !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("dimension %d: %v, want ErrInvalid", dim, err)
		}
	}
	e := lexical(t, 64)
	for _, text := range []string{"", " \n\t", "\x00\x01"} {
		_, err := e.Embed(t.Context(), []string{"fine", text})
		if !errors.Is(err, memd.ErrInvalid) || !strings.Contains(err.Error(), "text 1") {
			t.Errorf("text %q: %v, want ErrInvalid that names text 1", text, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Embed(ctx, spoken); !errors.Is(err, context.Canceled) {
		t.Errorf("after cancelling: %v", err)
	}
}

func TestNew(t *testing.T) {
	cfg := embed.Config{BaseURL: "http://localhost/v1", Model: "m"}
	for name, want := range map[string]string{"lexical": "lexical/1", "openai": "openai/m", "none": "none"} {
		e, err := embed.New(name, 384, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if e.Name() != want || e.Dimension() != 384 {
			t.Errorf("%s: got %s of dimension %d", name, e.Name(), e.Dimension())
		}
	}
	if _, err := embed.New("word2vec", 384, cfg); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("unknown name: %v, want ErrInvalid", err)
	}
	e, err := embed.None(3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Embed(t.Context(), []string{"text"}); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("none embeds: %v, want ErrInvalid", err)
	}
}

func FuzzLexical(f *testing.F) {
	for _, s := range spoken {
		f.Add(s)
	}
	f.Add("\xff\xfe\xf0")
	e := lexical(f, 64)
	f.Fuzz(func(t *testing.T, text string) {
		vs, err := e.Embed(t.Context(), []string{text})
		if err != nil {
			if !errors.Is(err, memd.ErrInvalid) || vs != nil {
				t.Fatal(err)
			}
			return
		}
		if c := cosine(vs[0], vs[0]); math.Abs(c-1) > 1e-5 {
			t.Fatalf("length %f", math.Sqrt(c))
		}
	})
}

func BenchmarkLexical(b *testing.B) {
	e := lexical(b, 384)
	short := spoken[:13]
	n := 0
	for b.Loop() {
		if _, err := e.Embed(b.Context(), short); err != nil {
			b.Fatal(err)
		}
		n += len(short)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "texts/s")
}
