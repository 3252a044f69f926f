package bench

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"forgettable.dev/memd"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/tenants"
)

// Fused search is measured on conversations: every turn is a row of its user, and a
// question is right when the turn that it is about is among the first few hits.

const (
	fusedHits     = 5
	fusedWeight   = 0.5
	fusedQuestion = 200 // of each kind
)

// dialogue is a line of the file of conversations.
type dialogue struct {
	User  string `json:"user"`
	Turns []struct {
		Text string `json:"text"`
	} `json:"turns"`
	Named []string `json:"named"`
}

// asking is a way to ask for a turn that names a value which no other turn of the
// user names. It returns "" where the value does not lend itself to it.
type asking struct {
	name string
	of   func(value string) string
}

var askings = []asking{
	{"by a name", func(v string) string { return "Could you remind me what it was that we said about " + v + "?" }},
	{"by part of a name", func(v string) string {
		words := strings.Fields(v)
		if len(words) < 2 || len(words[0]) < 4 {
			return ""
		}
		return "What was that place again, something with " + words[0] + "?"
	}},
	{"by a misspelt name", func(v string) string {
		r := []rune(v)
		if len(r) < 6 || len(strings.Fields(v)) > 2 {
			return ""
		}
		r[2], r[3] = r[3], r[2]
		if string(r) == v {
			return ""
		}
		return "Did you not tell me something of " + string(r) + "?"
	}},
	{"by a name among other words", func(v string) string {
		return "I would like to book the same one again for two people next week, with a good table or seat, the one at " + v + ", please help me find it"
	}},
}

// question asks for a row of a user.
type question struct {
	user, text, value string
}

func fused(ctx context.Context, l *lab) ([]Figure, error) {
	said, named, err := readDialogues(l.c.Conversations)
	if err != nil {
		return nil, err
	}
	p := tenants.DefaultPolicy()
	p.Embedder = tenants.EmbedderLexical
	made, err := l.d.CreateTenantWith(ctx, "fused", "fused", p)
	if err != nil {
		return nil, err
	}
	t := memory.Tenant{No: made.No, Epoch: made.Epoch, Dimension: p.Dimension, Embedder: p.Embedder, Format: memory.FormatFloat32}
	rows := 0
	for user, turns := range said {
		rows += len(turns)
		if err := l.say(ctx, t, user, turns); err != nil {
			return nil, err
		}
	}
	words, err := l.wordBytes(ctx, t, said)
	if err != nil {
		return nil, err
	}
	out := []Figure{{Name: "memory of words", Unit: "bytes/row", Ours: float64(words) / float64(rows), Must: "told", Met: true}}
	var all [2]float64
	for _, a := range askings {
		qs := ask(a, said, named)
		if len(qs) == 0 {
			return nil, errors.New("the conversations name nothing that can be asked for")
		}
		var found [2]float64
		for i, weight := range []float32{0, fusedWeight} {
			for _, q := range qs {
				right, err := l.finds(ctx, t, q, weight)
				if err != nil {
					return nil, err
				}
				if right {
					found[i] += 1 / float64(len(qs))
				}
			}
			all[i] += found[i] / float64(len(askings))
		}
		out = append(out, alone(fmt.Sprintf("right turn among %d, %s", fusedHits, a.name), found))
	}
	return append(out, alone(fmt.Sprintf("right turn among %d, all questions", fusedHits), all)), nil
}

// wordBytes has the words of all users come into memory, and returns what they take.
func (l *lab) wordBytes(ctx context.Context, t memory.Tenant, said map[string][]string) (int64, error) {
	var size [2]int64
	for i, weight := range []float32{0, fusedWeight} {
		for user := range said {
			if _, err := l.finds(ctx, t, question{user: user, text: "anything"}, weight); err != nil {
				return 0, err
			}
		}
		_, size[i] = l.d.Server.Memory.Resident()
	}
	return size[1] - size[0], nil
}

// alone compares with vectors alone.
func alone(name string, found [2]float64) Figure {
	return against(name, "of 1", found[1], "vectors alone", found[0], "told", func(float64) bool { return true })
}

// readDialogues returns what each user said and heard, in order and each text once,
// and the values that their conversations name.
func readDialogues(file string) (said, named map[string][]string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	said, named = map[string][]string{}, map[string][]string{}
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var d dialogue
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			return nil, nil, err
		}
		for _, turn := range d.Turns {
			if key := d.User + "\x00" + turn.Text; !seen[key] {
				seen[key] = true
				said[d.User] = append(said[d.User], turn.Text)
			}
		}
		named[d.User] = append(named[d.User], d.Named...)
	}
	return said, named, lines.Err()
}

// ask makes questions of a kind, always the same: of values that one turn of their user
// names, and no other.
func ask(a asking, said, named map[string][]string) (out []question) {
	for user, values := range named {
		for _, v := range values {
			turns := 0
			for _, turn := range said[user] {
				if strings.Contains(turn, v) {
					turns++
				}
			}
			if utf8.RuneCountInString(v) < 4 || turns != 1 {
				continue
			}
			if text := a.of(v); text != "" {
				out = append(out, question{user, text, v})
			}
		}
	}
	slices.SortFunc(out, func(a, b question) int {
		return cmp.Or(strings.Compare(a.user, b.user), strings.Compare(a.text, b.text))
	})
	rng := rand.New(rand.NewPCG(1, 2))
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:min(len(out), fusedQuestion)]
}

func conversationScope(user string) memd.Scope { return memd.Scope{App: "fused", UserID: user} }

// say adds turns to a user.
func (l *lab) say(ctx context.Context, t memory.Tenant, user string, turns []string) error {
	for batch := range slices.Chunk(turns, memd.MaxBatch) {
		rows := make([]memory.Row, len(batch))
		for i, text := range batch {
			rows[i] = memory.Row{Scope: conversationScope(user), SessionID: "s", Kind: memory.KindRaw, Text: text}
		}
		if _, err := l.d.Server.Memory.Add(ctx, t, rows); err != nil {
			return err
		}
	}
	return nil
}

// finds reports whether the turn that names the value is among the hits.
func (l *lab) finds(ctx context.Context, t memory.Tenant, q question, weight float32) (bool, error) {
	r, err := l.d.Server.Memory.Search(ctx, t, memory.Query{
		Scope: conversationScope(q.user), Text: q.text, TopK: fusedHits, LexicalWeight: weight,
	})
	if err != nil {
		return false, err
	}
	if r.Fused != (weight > 0) {
		return false, errors.New("a search was not fused as it was asked")
	}
	return slices.ContainsFunc(r.Hits, func(h memory.Hit) bool { return strings.Contains(h.Memory.Text, q.value) }), nil
}
