package memory

import (
	"errors"
	"math"
	"slices"

	"forgettable.dev/memd"
	"forgettable.dev/memd/embed"
	"forgettable.dev/memd/shred"
)

// A scope's lexicon is what BM25 asks of its texts: of each row its words, as hashes,
// with how often they occur, and of each word in how many rows it does. It is made when
// the first search asks for it, from the rows that are in memory, and a row takes its
// words along when it goes.
//
// Words are kept by row and not by word: every row is looked at anyway, a row that is
// forgotten is one list that is wiped, and nothing has to be compacted. That is why it
// is none of the libraries for inverted indexes (bleve, bluge): those keep texts and
// words in segments that are merged some time later, and wipe none.

// BM25's constants: how soon more of the same word says no more, and how much less a
// word says in a long text.
const (
	bm25K = 1.2
	bm25B = 0.75
)

// lexicon is of one resident scope.
type lexicon struct {
	made  bool              // every row with a text has its words
	rows  map[uint32]uint32 // by word
	texts int
	words int // in all texts
}

// wording is the words of one row.
type wording struct {
	words []occurrence // by hash
	mark  uint64       // a bit for each word's hash: whether it may be there at all
	count uint32       // of all words, repeated ones too
}

type occurrence struct {
	word  uint32
	count uint32
}

// What a word takes in the list of a row, and about what in the map of a scope.
const (
	occurrenceBytes = 8
	wordBytes       = 24
)

func wordingOf(text string) *wording {
	w := &wording{}
	embed.Words(text, func(hash uint64) {
		w.words = append(w.words, occurrence{uint32(hash), 1})
		w.mark |= 1 << (hash % 64)
		w.count++
	})
	slices.SortFunc(w.words, func(a, b occurrence) int { return int(int64(a.word) - int64(b.word)) })
	n := 0
	for i, o := range w.words {
		if i > 0 && w.words[n-1].word == o.word {
			w.words[n-1].count++
			continue
		}
		w.words[n] = o
		n++
	}
	w.words = slices.Clip(w.words[:n])
	return w
}

// learn gives every row with a text its words, and forgets none.
func (r *resident) learn(k *shred.Keys) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lexicon.rows == nil {
		r.lexicon.rows = map[uint32]uint32{}
	}
	for i := range r.entries {
		e := &r.entries[i]
		if e.text == nil || e.wording != nil {
			continue
		}
		st := stored{id: e.id, owner: r.subject, month: e.month, contributions: e.contributions, sealed: sealed{text: e.text}}
		c, err := st.open(k, false)
		if errors.Is(err, memd.ErrMonthExpired) {
			continue // It is about to leave.
		}
		if err != nil {
			return err
		}
		e.wording = wordingOf(c.text)
		r.extra += r.lexicon.add(e.wording)
	}
	r.lexicon.made = true
	return nil
}

// add counts a row's words, and returns what they take in bytes.
func (l *lexicon) add(w *wording) (bytes int64) {
	before := len(l.rows)
	for _, o := range w.words {
		l.rows[o.word]++
	}
	l.texts++
	l.words += int(w.count)
	return int64(occurrenceBytes*len(w.words) + wordBytes*(len(l.rows)-before))
}

// remove takes a row's words out of the count, wipes them, and returns what they took.
func (l *lexicon) remove(w *wording) (bytes int64) {
	if w == nil {
		return 0
	}
	before := len(l.rows)
	for _, o := range w.words {
		if l.rows[o.word]--; l.rows[o.word] == 0 {
			delete(l.rows, o.word)
		}
	}
	l.texts--
	l.words -= int(w.count)
	bytes = int64(occurrenceBytes*len(w.words) + wordBytes*(before-len(l.rows)))
	clear(w.words)
	*w = wording{}
	return bytes
}

// asking is a query's words with their weights in one scope.
type asking struct {
	words []weighted
	mark  uint64
	mean  float64 // words of a text
}

type weighted struct {
	word   uint32
	weight float64
}

// ask weighs words by how few rows have them.
func (l *lexicon) ask(w *wording) asking {
	a := asking{mean: max(1, float64(l.words)/max(1, float64(l.texts)))}
	for _, o := range w.words {
		n := float64(l.rows[o.word])
		if n == 0 {
			continue
		}
		a.words = append(a.words, weighted{o.word, math.Log(1 + (float64(l.texts)-n+0.5)/(n+0.5))})
		a.mark |= 1 << (o.word % 64)
	}
	return a
}

// score is BM25's, 0 for a row with none of the words.
func (a *asking) score(w *wording) float32 {
	if w == nil || w.mark&a.mark == 0 {
		return 0
	}
	var sum float64
	for _, q := range a.words {
		at, found := slices.BinarySearchFunc(w.words, q.word, func(o occurrence, word uint32) int { return int(int64(o.word) - int64(word)) })
		if found {
			n := float64(w.words[at].count)
			sum += q.weight * n * (bm25K + 1) / (n + bm25K*(1-bm25B+bm25B*float64(w.count)/a.mean))
		}
	}
	return float32(sum)
}
