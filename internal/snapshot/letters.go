package snapshot

// Letters is the set of characters of a string, as far as anybody who reads a snapshot tells them apart: each letter
// without its case, and each sign that a form of [FindSecret] has or that a name may have. It is noted
// while a string is read, so that what a string cannot hold is not looked for in it.
type Letters uint64

// The bits below these are the letters, a first.
const (
	upperLetter Letters = 1 << (26 + iota) // some letter is an upper case one
	digit
	dash
	underscore
	dot
	colon
	slash
	equals
	at
	space
	otherSign   // of printable ASCII
	quoteSign   // which ends a literal
	escapedByte // a control character, a backslash, or above ASCII: not spelled as it is, or not one byte
)

// oddLetters are those that names, addresses and ids do without.
const oddLetters = upperLetter | underscore | equals | at | space | escapedByte

// letterOf is the set of each byte alone.
var letterOf = func() (t [256]Letters) {
	for i := range t {
		switch b := byte(i); {
		case 'a' <= b && b <= 'z':
			t[i] = 1 << (b - 'a')
		case 'A' <= b && b <= 'Z':
			t[i] = 1<<(b-'A') | upperLetter
		case '0' <= b && b <= '9':
			t[i] = digit
		case b < ' ' || b > '~' || b == '\\':
			t[i] = escapedByte
		default:
			t[i] = otherSign
		}
	}
	t[0x7f] = otherSign // JSON spells it as it is
	for b, l := range map[byte]Letters{
		'-': dash, '_': underscore, '.': dot, ':': colon, '/': slash, '=': equals, '@': at, ' ': space, '"': quoteSign,
	} {
		t[b] = l
	}
	return t
}()

// LettersOf returns the letters of s.
func LettersOf(s string) (l Letters) {
	for i := range len(s) {
		l |= letterOf[s[i]]
	}
	return l
}

// ScanLiteral returns where the first byte of in from start on is that a JSON string does not hold as it is, a quote or what
// is escaped, and the letters before it. It returns len(in) if there is none.
func ScanLiteral(in string, start int) (end int, l Letters) {
	for i := start; i < len(in); i++ {
		m := letterOf[in[i]]
		if m&(quoteSign|escapedByte) != 0 {
			return i, l
		}
		l |= m
	}
	return len(in), l
}

// Escaped returns l of a string that was spelled with escapes, or with characters above ASCII.
func (l Letters) Escaped() Letters { return l | escapedByte }

// FindSecretAmong is FindSecret of a string whose letters are l, which is odd if they are: a form
// is looked for if s has all letters of its beginning.
func FindSecretAmong(s string, l Letters) string {
	if len(s) < shortestSecret {
		return ""
	}
	starts, needs := &plainStarts, plainNeeds
	if l&oddLetters != 0 {
		starts, needs = &formStarts, formNeeds
	}
	for _, need := range needs {
		if l&need == need {
			return findIn(s, starts)
		}
	}
	return ""
}

// formNeeds are the letters without which no form of secretForms begins, plainNeeds those of the plain ones. A set
// that holds another one says nothing that the smaller does not.
var formNeeds, plainNeeds = func() (all, plain []Letters) {
	add := func(needs []Letters, need Letters) []Letters {
		for _, n := range needs {
			if need&n == n {
				return needs
			}
		}
		return append(needs, need)
	}
	for i := range secretForms {
		f := &secretForms[i]
		// What folds is in lower case here, and needs letters of no case.
		need := LettersOf(f.begin)
		all = add(all, need)
		if f.plain {
			plain = add(plain, need)
		}
	}
	return all, plain
}()
