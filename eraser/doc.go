// Package eraser makes a store outside memd a purge target: it serves
// memd.v1.EraserService, or receives memd's signed webhooks, so that an erasure
// at memd also reaches what an application keeps by itself.
//
//	h, err := eraser.Handler(store, eraser.WithToken(os.Getenv("MEMD_TARGET_TOKEN")))
//	…
//	http.ListenAndServeTLS(":8443", cert, key, h)
//
// where store implements Eraser. The token, or the key of a webhook, is what
// "memd target add" printed. One handler can have both.
//
// The handler checks who is calling before it reads what they ask, refuses a
// request whose ids are missing or that it does not understand, and remembers
// the answers of webhooks for as long as a copy of them would be accepted, so
// that a replayed "erase" cannot hit a user who came back in between. What an
// Eraser returns as an error is not sent: memd learns that it failed, and asks
// again.
//
// Nothing of a request is logged here, and nothing of it belongs in a log.
package eraser
