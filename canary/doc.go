// Package canary verifies that an erasure has left nothing. It shares no code
// with what erases, and none with what stores: it asks the tables by statements
// of its own, opens rows with the keys, unwraps key trees anew, and reads raw
// pages and logs.
//
// # Two looks
//
// Draw looks before the deletion, Verify after it, with the same eyes. Nothing
// passes that did not hit before: a count that was zero, a word that was not
// found, a state that did not open, are no control, and their checks are
// "not_run". What could not be looked at (no right, no time, no answer) is
// "not_run" with a reason as well.
//
// # Checks
//
//   - Rows, by table: of the subject, by owner and by contribution; zero.
//   - unique_probes: distinctive words that only rows which must go had before.
//     Afterwards nobody may have them: a row that has is a copy whose provenance
//     was lost, and is named. So is one with the same sealed bytes.
//   - vector_probes: the same with vectors.
//   - shared_probes: words that a few others had said too. Rows that have them are
//     named for a person to look at.
//   - derivation_refused, ledger_state: the states that database and ledgers have
//     now derive none of the erased keys; neighbour_derives: those of others they
//     do.
//   - old_epochs, key_versions: no state from before can be unwrapped, and the KMS
//     lists no version that could.
//   - instances: no live process holds such a state.
//   - fence: what keeps writers out is in place.
//   - logs: no id of the subject stands in the ends of the configured files.
//   - residue: how many sealed values of deleted rows are still in raw pages.
//
// Of a month that expires, which is everybody's, words are not looked for: rows are
// counted by month, its key must not be derived, and those of its neighbours must.
//
// # What is remembered, and how
//
// Words are kept as hashes under a key that is made from the job's leaf of the
// key tree, vectors as they are; all of it is sealed under that leaf, which is
// punctured when the job ends. Checks name rows by id and number, and hold
// nothing of anybody's.
//
// # What a search can miss
//
// It reads words, not meanings: a paraphrase without a name, a number or a rare
// word is not found, and neither is a text in an image. What the budget did not
// reach is counted, and then the search is no pass. Rows that were written after
// it has passed are the second sweep's. See docs/design/0011-canaries.md.
package canary
