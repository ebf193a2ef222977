package fetch

import (
	"encoding/hex"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// Version is the version of PostgreSQL that Server downloads.
const Version = "17.11.0"

// pinned has the SHA-256 of each platform's archive of Version in the default repository.
var pinned = map[string]string{
	"linux-amd64":    "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d",
	"linux-arm64v8":  "8b042e0ea418b1927d95399207950da0734d27fe01e29503ade3bdc464ad4c2b",
	"darwin-amd64":   "d464ff178e9860ba204662ac23fa547504b7fd392392ff2fb92e3fd73b5bdb64",
	"darwin-arm64v8": "a1c2786acb0c398f9b2d76806fc52f5dc8b222cbc8e9383a9b9702084daaf3a5",
	"windows-amd64":  "98040fae18dd9633ff95932125b0cecf0a45a1a9312e216e2a33ad03a31d4251",
}

// The environment variables that change what is downloaded.
const (
	// repositoryEnv names the URL of a Maven repository, such as a company's mirror.
	repositoryEnv = "PGLIMIT_DOWNLOAD_URL"
	// hashEnv names the SHA-256 that the archive must have, in hexadecimal, in place of
	// the one in pinned.
	hashEnv = "PGLIMIT_DOWNLOAD_SHA256"
)

// platform returns the repository's name for this system.
func platform() string {
	_, err := os.Stat("/etc/alpine-release")
	return platformOf(runtime.GOOS, runtime.GOARCH, err == nil)
}

func platformOf(system, machine string, alpine bool) string {
	switch machine {
	case "arm64":
		machine = "arm64v8"
	case "arm":
		machine = "arm32v7"
	case "386":
		machine = "i386"
	}
	name := system + "-" + machine
	if alpine {
		name += "-alpine"
	}
	return name
}

// hashOf returns the SHA-256 that the archive of a platform must have.
func hashOf(platform string) (string, error) {
	if given := strings.ToLower(os.Getenv(hashEnv)); given != "" {
		if sum, err := hex.DecodeString(given); err != nil || len(sum) != 32 {
			return "", fmt.Errorf("%s is %q, which is no SHA-256: set it to 64 hexadecimal digits, or unset it", hashEnv, os.Getenv(hashEnv))
		}
		return given, nil
	}
	if hash, ok := pinned[platform]; ok {
		return hash, nil
	}
	return "", fmt.Errorf("pglimit knows no SHA-256 of PostgreSQL %s for %s, so --download refuses it: install a server, or check the archive and set %s to its SHA-256", Version, platform, hashEnv)
}
