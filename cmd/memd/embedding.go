package main

import (
	"time"

	"forgettable.dev/memd/embed"
)

// embeddingFlags say where the embedder "openai" of a tenant is. They do not
// choose it: a tenant's policy does, once.
type embeddingFlags struct {
	BaseURL       string        `name:"openai-base-url" group:"embedder" placeholder:"URL" help:"Root of an API like OpenAI's, such as https://api.openai.com/v1. A key for it is read from $$MEMD_OPENAI_API_KEY and has no flag, because a command line can be seen by others on the machine."`
	Model         string        `name:"openai-model" group:"embedder" placeholder:"NAME" help:"Model to ask for vectors."`
	SendDimension bool          `name:"openai-send-dimension" group:"embedder" help:"Ask the model for the tenant's dimension, which only models that can shorten their vectors accept."`
	BatchSize     int           `name:"openai-batch-size" group:"embedder" default:"128" help:"Texts in one request, 1 to 2048."`
	RequestTime   time.Duration `name:"openai-timeout" group:"embedder" default:"10s" help:"How long one request may take, without its repetitions."`
}

// config returns a usageError when a number cannot be right. Whether address
// and model are there is asked when a tenant needs them.
func (f *embeddingFlags) config(getenv func(string) string) (embed.Config, error) {
	switch {
	case f.BatchSize < 1 || f.BatchSize > 2048:
		return embed.Config{}, usagef("--openai-batch-size must be between 1 and 2048")
	case f.RequestTime <= 0:
		return embed.Config{}, usagef("--openai-timeout must be more than nothing")
	}
	return embed.Config{
		BaseURL: f.BaseURL, Model: f.Model, APIKey: embed.Secret(getenv("MEMD_OPENAI_API_KEY")),
		SendDimension: f.SendDimension, BatchSize: f.BatchSize, Timeout: f.RequestTime,
	}, nil
}
