// Package kuadrantpb has the messages of Kuadrant's rate limit service.
package kuadrantpb
