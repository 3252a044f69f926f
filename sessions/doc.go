// Package sessions keeps conversations: their events in order, and state.
//
// A session is a user's, of one app. What it holds means what it means in the
// Agent Development Kit (ADK): an event may change state, a key that begins with
// "app:" is shared by all users of the app, one with "user:" by all sessions of
// the user, one with "temp:" is never stored, and every other is the session's
// own. Reading a session merges the three.
//
// # What is sealed, and under what
//
// Events, and state of the session: the content key of the session and of the
// month in which it was created. State of the user: the user's own scope, so
// that it outlives every session and goes with the user. State of the app: the
// shared scope's key and that of the user who wrote the entry last, so that it
// goes with that user; an entry that was declared impersonal has the shared
// scope's alone. Digests of event ids and of state keys are made with the same
// keys, and die with them. In clear: numbers, times, sizes.
//
// # Order
//
// Writers of one session take turns on its head, a row that counts them. A
// writer says which update of the session it has seen; when there is a later
// one, the write is refused and nothing is lost. An event is known by its id:
// the same again, however late, changes nothing and is told where it is.
//
// # Erasure
//
// Reads ask in the statement that reads whether the user is fenced and the
// session alive; writes are refused by the database's guard. Deleting a session
// is an erasure, and this package only counts and deletes what that is to take.
// A deleted session's id is refused for ever, so that none of its events can be
// found under it again.
package sessions
