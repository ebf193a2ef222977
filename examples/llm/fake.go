package main

import (
	"context"
	"errors"
	"iter"
	"strings"
)

var errModel = errors.New("the model failed")

// fake is a model that returns the prompt's words in capitals, one token each. It fails at
// the word "fail"; if that is the first word, before it begins.
func fake(ctx context.Context, prompt string, maxTokens int) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		words := strings.Fields(prompt)
		for i, word := range words[:min(len(words), maxTokens)] {
			err := ctx.Err()
			if word == "fail" {
				err = errModel
			}
			if err != nil {
				yield(Chunk{}, err)
				return
			}
			if !yield(Chunk{strings.ToUpper(word) + " ", len(words) + i + 1}, nil) {
				return
			}
		}
	}
}
