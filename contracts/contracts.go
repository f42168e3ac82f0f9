// Package contracts holds the built-in provider contracts as data. Their
// language is described in docs/CONTRACTS.md.
package contracts

import "embed"

// FS has one file per contract, NAME.yaml.
//
//go:embed *.yaml
var FS embed.FS
