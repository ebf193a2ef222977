package shards

import (
	"encoding/binary"
	"math/bits"
)

// Hash returns PostgreSQL's hashtext of text in a database that stores it as UTF-8, on a
// little-endian server. It is Bob Jenkins' lookup3, as hash_bytes of PostgreSQL has it.
func Hash(text string) int32 {
	s := start(len(text))
	for len(text) >= 12 {
		s.a += word(text)
		s.b += word(text[4:])
		s.c += word(text[8:])
		s.mix()
		text = text[12:]
	}
	var rest [12]byte
	copy(rest[:8], text)
	if len(text) > 8 {
		copy(rest[9:], text[8:]) // the low byte of c is the length's
	}
	s.a += binary.LittleEndian.Uint32(rest[0:])
	s.b += binary.LittleEndian.Uint32(rest[4:])
	s.c += binary.LittleEndian.Uint32(rest[8:])
	s.final()
	return int32(s.c)
}

// textOf returns a text of 12 ASCII characters that hashes to hash. Steps of the hash can
// be undone, so that it is found in about 4,000 tries whatever the hash.
func textOf(hash int32) string {
	before := start(12)
	var text [12]byte
	for try := uint32(0); ; try++ {
		s := state{a: try, b: try, c: uint32(hash)}
		s.unfinal()
		s.unmix()
		binary.LittleEndian.PutUint32(text[0:], s.a-before.a)
		binary.LittleEndian.PutUint32(text[4:], s.b-before.b)
		binary.LittleEndian.PutUint32(text[8:], s.c-before.c)
		if ascii(text) {
			return string(text[:])
		}
	}
}

func ascii(text [12]byte) bool {
	for _, c := range text {
		if c == 0 || c >= 0x80 {
			return false
		}
	}
	return true
}

func word(text string) uint32 {
	return uint32(text[0]) | uint32(text[1])<<8 | uint32(text[2])<<16 | uint32(text[3])<<24
}

type state struct{ a, b, c uint32 }

func start(length int) state {
	v := 0x9e3779b9 + uint32(length) + 3923095
	return state{v, v, v}
}

// Every step of mix and final changes one word by another, and so has an inverse.
func (s *state) mix() {
	for i, n := range [6]int{4, 6, 8, 16, 19, 4} {
		x, y, z := s.words(i)
		*x -= *z
		*x ^= bits.RotateLeft32(*z, n)
		*z += *y
	}
}

func (s *state) unmix() {
	for i, n := range [6]int{4, 19, 16, 8, 6, 4} {
		x, y, z := s.words(5 - i)
		*z -= *y
		*x ^= bits.RotateLeft32(*z, n)
		*x += *z
	}
}

// words returns a, b and c, turned so that the word that step i changes is the first.
func (s *state) words(i int) (x, y, z *uint32) {
	switch i % 3 {
	case 0:
		return &s.a, &s.b, &s.c
	case 1:
		return &s.b, &s.c, &s.a
	}
	return &s.c, &s.a, &s.b
}

func (s *state) final() {
	for i, n := range [7]int{14, 11, 25, 16, 4, 14, 24} {
		x, _, z := s.words(i + 2) // c by b, a by c, b by a, …
		*x ^= *z
		*x -= bits.RotateLeft32(*z, n)
	}
}

func (s *state) unfinal() {
	for i, n := range [7]int{24, 14, 4, 16, 25, 11, 14} {
		x, _, z := s.words(8 - i)
		*x += bits.RotateLeft32(*z, n)
		*x ^= *z
	}
}
