// Package embed turns text into vectors.
//
// There are three embedders. Lexical is built in, needs no network and no
// model, and matches spelling, not meaning: it finds "2801 Summit Street" for
// "summit st 2801", and does not know that a flat is an apartment. OpenAI asks
// any server that speaks OpenAI's /v1/embeddings and knows what its model
// knows. None refuses, for tenants whose agents send vectors of their own.
//
// A tenant's policy names its embedder and fixes the dimension. Vectors of two
// embedders, or of two models, must not meet in one store: their cosines mean
// nothing. Embedder.Name tells them apart.
//
// Texts are personal. No error of this package repeats a text, a vector, an
// endpoint's answer or an API key, and nothing is logged.
package embed
